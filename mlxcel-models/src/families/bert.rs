//! BERT; RoBERTa, whose positions are counted from the padding token's id on; and Jina Embeddings v2, with
//! ALiBi and gated MLPs (Devlin et al., 2018; Liu et al., 2019; Günther et al., 2023).
//!
//! Config fields, defaults and arithmetic follow transformers' `BertModel`, `RobertaModel` and
//! `XLMRobertaModel`, and the authors' `JinaBertModel`. That of Jina's model for code, which normalizes queries
//! and keys, is refused.

use mlxcel_core::{Error, Result};

use super::Family;
use super::blocks::{normed_output, plain_attention, sequential};
use super::encoder::{EncoderOutline, both_ways, token_types};
use super::roles::{OPERATION, Roles};
use super::settings::{LARGEST_CONTEXT, SizeDefaults, Sizes, activation, expect_flag, expect_text, positive};
use crate::config::Fields;
use crate::decoder::{Activation, AttentionCore, Decoder, Gating, Linear, Mlp};

pub(super) const FAMILY: Family = Family::new(&["bert"], &[], describe);

pub(super) const ROBERTA: Family = Family::new(&["roberta", "xlm-roberta"], &[2], describe_roberta);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 30_522,
    hidden: 768,
    intermediate: 3072,
    layers: 12,
    query_heads: 12,
    kv_heads: None,
    head_dim: None,
    context: 512,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    encoder(roles, "bert.", 0)
}

fn describe_roberta(roles: &Roles<'_>) -> Result<Decoder> {
    let padding = roles.config.size("pad_token_id", 0..=LARGEST_CONTEXT)?.unwrap_or(1);
    encoder(roles, "roberta.", padding + 1)
}

/// The encoder with modules behind `base`, whose table of positions has the first one in row `offset`.
fn encoder(roles: &Roles<'_>, base: &str, offset: usize) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "is_decoder", false)?;
    expect_flag(config, "add_cross_attention", false)?;
    let alibi = offset == 0 && config.text("position_embedding_type")? == Some("alibi");
    if !alibi {
        expect_text(config, "position_embedding_type", "absolute")?;
        expect_text(config, "feed_forward_type", "original")?;
    }
    let mut sizes = Sizes::read(config, &DEFAULTS)?.with_equal_heads(config)?;
    if sizes.context <= offset {
        let message = format!("the first {offset} positions are not used, and there are no more");
        return Err(config.wrong("max_position_embeddings", message));
    }
    sizes.context -= offset;
    let epsilon = positive(config, "layer_norm_eps", 1e-12)?;
    let activation = if alibi { gate(config)? } else { activation(config, "hidden_act", Activation::Gelu)? };
    let types = token_types(config, 2, false)?;

    let base = roles.base(base, "embeddings.word_embeddings");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}encoder.layer.{index}.{part}");
        let linear = |part: &str, outputs, inputs| roles.linear(&name(part), outputs, inputs, true);
        let (hidden, intermediate, width) = (sizes.hidden, sizes.intermediate, sizes.query_width());
        let inputs = [
            linear("attention.self.query", width, hidden)?,
            linear("attention.self.key", width, hidden)?,
            linear("attention.self.value", width, hidden)?,
        ];
        let output = linear("attention.output.dense", hidden, width)?;
        let core = AttentionCore { alibi, ..both_ways(sizes.scale(), None, None) };
        let attention = plain_attention(&sizes, inputs, output, core);
        let after_attention = norm(&name("attention.output.LayerNorm"))?;
        let (mlp, after_mlp) = if alibi {
            refuse_norms(roles, &name("attention.self.layer_norm_q"))?;
            let [gate, up] = gate_and_up(roles, &name("mlp"), [intermediate, hidden])?;
            let down = linear("mlp.wo", hidden, intermediate)?;
            (
                Mlp::Gated { gating: Gating::Activated(activation), gate, up, norm: None, down },
                "mlp.layernorm",
            )
        } else {
            let up = linear("intermediate.dense", intermediate, hidden)?;
            let down = linear("output.dense", hidden, intermediate)?;
            (Mlp::Plain { activation, up, down }, "output.LayerNorm")
        };
        let after_mlp = norm(&name(after_mlp))?;
        Ok(sequential([normed_output(attention, after_attention), normed_output(mlp, after_mlp)]))
    };
    let embeddings = |part: &str| format!("{base}embeddings.{part}");
    let outline = EncoderOutline {
        embedding: embeddings("word_embeddings"),
        positions: (!alibi).then(|| (embeddings("position_embeddings"), offset)),
        types: Some((embeddings("token_type_embeddings"), types)),
        embedding_norm: Some(embeddings("LayerNorm")),
        norm: None,
    };
    roles.encoder(&sizes, &outline, norm, layer)
}

/// The activation of Jina's gates.
fn gate(config: Fields<'_>) -> Result<Activation> {
    const KEY: &str = "feed_forward_type";
    match config.text(KEY)? {
        Some("geglu") => Ok(Activation::Gelu),
        Some("reglu") => Ok(Activation::Relu),
        other => {
            let message = format!(
                "'{}' is not supported; geglu and reglu are",
                other.unwrap_or("original").escape_debug()
            );
            Err(config.unsupported(KEY, message))
        }
    }
}

/// Jina's gate and up projection, which are one matrix, the gate first; older GGUF files have two.
fn gate_and_up(roles: &Roles<'_>, module: &str, [outputs, inputs]: [usize; 2]) -> Result<[Linear; 2]> {
    let (gate, both) = (format!("{module}.gated_layers_w"), format!("{module}.gated_layers"));
    if roles.has_matrix(&gate) {
        let [gate, up] = [gate, both].map(|part| roles.linear(&part, outputs, inputs, false));
        return Ok([gate?, up?]);
    }
    let fused = roles.fused(&both, 2 * outputs, inputs, false)?;
    Ok([0, outputs].map(|start| fused.rows(start, outputs)))
}

fn refuse_norms(roles: &Roles<'_>, norm: &str) -> Result<()> {
    if roles.has(&format!("{norm}.weight")) {
        let message = "a BERT with ALiBi whose queries and keys are normalized is not supported";
        return Err(Error::unsupported(OPERATION, message).with_context("tensor", norm));
    }
    Ok(())
}
