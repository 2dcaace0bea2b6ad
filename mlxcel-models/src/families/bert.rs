//! BERT, and ERNIE without task types; RoBERTa, whose positions are counted from the padding token's id on;
//! and Jina Embeddings v2, with ALiBi and gated MLPs (Devlin et al., 2018; Sun et al., 2019; Liu et al.,
//! 2019; Günther et al., 2023).
//!
//! Config fields, defaults and arithmetic follow transformers' `BertModel`, `ErnieModel`, `RobertaModel`,
//! `CamembertModel` and `XLMRobertaModel`, and the authors' `JinaBertModel`. That of Jina's model for code,
//! which normalizes queries and keys, is refused.

use mlxcel_core::Error;

use super::blocks::normed_output;
use super::encoder::{both_ways, token_types};
use super::prelude::*;
use super::roles::OPERATION;
use crate::decoder::{DISTANCE_BUCKETS, DistanceBias};

pub(super) const FAMILY: Family = Family::new(&["bert"], &[], |roles| describe(roles, "bert.", 0));

pub(super) const ROBERTA: Family = Family::new(&["camembert", "roberta", "xlm-roberta"], &[2], |roles| {
    let padding = roles.config.size("pad_token_id", 0..=LARGEST_CONTEXT)?.unwrap_or(1);
    describe(roles, "roberta.", padding + 1)
});

pub(super) const ERNIE: Family = Family::new(&["ernie"], &[], |roles| {
    expect_flag(roles.config, "use_task_id", false)?;
    describe(roles, "ernie.", 0)
});

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 30_522,
    hidden: 768,
    intermediate: 3072,
    layers: 12,
    query_heads: 12,
    context: 512,
    ..SizeDefaults::LLAMA
};

/// Names of modules.
pub(super) struct Names {
    pub(super) layers: &'static str,
    /// The projections of queries, keys and values.
    pub(super) inputs: [&'static str; 3],
    pub(super) output: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) mlp_norm: &'static str,
    /// The table of buckets of distances, if there is one.
    pub(super) buckets: Option<&'static str>,
}

pub(super) const NAMES: Names = Names {
    layers: "encoder.layer",
    inputs: ["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    buckets: None,
};

/// Names in Jina Embeddings v2.
const JINA: Names = Names { down: "mlp.wo", mlp_norm: "mlp.layernorm", ..NAMES };

/// What encoders of BERT's structure do otherwise, and their settings.
pub(super) struct Settings {
    /// What may stand before the names of modules.
    pub(super) base: &'static str,
    pub(super) names: Names,
    /// The context is the number of rows of the table of positions.
    pub(super) sizes: Sizes,
    /// The row of position 0.
    pub(super) offset: usize,
    /// The number of token types, if there are any.
    pub(super) types: Option<usize>,
    /// The width of embeddings before they are projected, if they are.
    pub(super) embedding: Option<usize>,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    /// Whether MLPs are gated and scores lowered by distance, in place of a table of positions.
    pub(super) alibi: bool,
}

impl Settings {
    /// Those of BERT, with sizes of `defaults`.
    pub(super) fn read(config: Fields<'_>, base: &'static str, defaults: &SizeDefaults) -> Result<Self> {
        expect_flag(config, "is_decoder", false)?;
        expect_flag(config, "add_cross_attention", false)?;
        Ok(Self {
            base,
            names: NAMES,
            sizes: Sizes::read(config, defaults)?.with_equal_heads(config)?,
            offset: 0,
            types: Some(token_types(config, 2, true)?).filter(|&types| types > 0),
            embedding: None,
            epsilon: positive(config, "layer_norm_eps", 1e-12)?,
            activation: activation(config, "hidden_act", Activation::Gelu)?,
            alibi: false,
        })
    }

    /// The same of Jina Embeddings v2.
    fn of_jina(self, config: Fields<'_>) -> Result<Self> {
        Ok(Self { names: JINA, activation: gate(config)?, alibi: true, ..self })
    }
}

/// The field of how positions are encoded.
pub(super) const POSITIONS: &str = "position_embedding_type";

fn describe(roles: &Roles<'_>, base: &'static str, offset: usize) -> Result<Decoder> {
    let config = roles.config;
    let settings = Settings { offset, ..Settings::read(config, base, &DEFAULTS)? };
    if offset == 0 && config.text(POSITIONS)? == Some("alibi") {
        return encoder(roles, settings.of_jina(config)?);
    }
    expect_text(config, POSITIONS, "absolute")?;
    expect_text(config, "feed_forward_type", "original")?;
    encoder(roles, settings)
}

/// The encoder of these settings.
pub(super) fn encoder(roles: &Roles<'_>, settings: Settings) -> Result<Decoder> {
    let Settings { base, names, mut sizes, offset, types, embedding, epsilon, activation, alibi } = settings;
    if sizes.context <= offset {
        let message = format!("the first {offset} positions are not used, and there are no more");
        return Err(roles.config.wrong("max_position_embeddings", message));
    }
    sizes.context -= offset;

    let base = roles.base(base, "embeddings.word_embeddings");
    let norm = |name: &str, width| roles.layer_norm(name, width, epsilon, true);
    let distance = match names.buckets {
        None => alibi.then_some(DistanceBias::Slopes),
        Some(table) => {
            let shape = [DISTANCE_BUCKETS, sizes.query_heads];
            Some(DistanceBias::Buckets(roles.tensor(&format!("{base}{table}.weight"), &shape)?))
        }
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}{}.{index}.{part}", names.layers);
        let linear = |part: &str, outputs, inputs| roles.linear(&name(part), outputs, inputs, true);
        let (hidden, intermediate, width) = (sizes.hidden, sizes.intermediate, sizes.query_width());
        let [query, key, value] = names.inputs.map(|part| linear(part, width, hidden));
        let output = linear(names.output, hidden, width)?;
        let core = AttentionCore { distance, ..both_ways(sizes.scale(), None, None) };
        let attention = plain_attention(&sizes, [query?, key?, value?], output, core);
        let after_attention = norm(&name(names.attention_norm), hidden)?;
        let mlp = if alibi {
            refuse_norms(roles, &name("attention.self.layer_norm_q"))?;
            let [gate, up] = gate_and_up(roles, &name("mlp"), [intermediate, hidden])?;
            let gating = Gating::Activated(activation);
            Mlp::Gated { gating, gate, up, norm: None, down: linear(names.down, hidden, intermediate)? }
        } else {
            let up = linear(names.up, intermediate, hidden)?;
            Mlp::Plain { activation, up, down: linear(names.down, hidden, intermediate)? }
        };
        let after_mlp = norm(&name(names.mlp_norm), hidden)?;
        Ok(sequential([normed_output(attention, after_attention), normed_output(mlp, after_mlp)]))
    };
    let embeddings = |part: &str| format!("{base}embeddings.{part}");
    let outline = Outline {
        embedding: embeddings("word_embeddings"),
        positions: (!alibi).then(|| (embeddings("position_embeddings"), offset)),
        types: types.map(|types| (embeddings("token_type_embeddings"), types)),
        embedding_norm: Some(embeddings("LayerNorm")),
        projection: embedding.map(|width| (format!("{base}embeddings_project"), width)),
        norm: None,
        head: None,
        ..Outline::new(&sizes, &base, false)
    };
    roles.decoder(outline, |name| norm(name, embedding.unwrap_or(sizes.hidden)), layer)
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
