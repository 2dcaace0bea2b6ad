//! Nomic BERT: a post-norm encoder with rotary positions and gated MLPs (Nussbaum et al., 2024, "Nomic
//! Embed").
//!
//! Config fields, defaults and arithmetic follow transformers' `NomicBertModel`. Checkpoints have the
//! authors' names of modules, or those of transformers.

use mlxcel_core::Result;

use super::blocks::{normed_output, sequential};
use super::encoder::{EncoderOutline, attention, both_ways, token_types};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, positive};
use super::{Conversion, Family};
use crate::decoder::{Activation, Decoder, Gating, Mlp};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family =
    Family { model_types: &["nomic_bert"], stop_tokens: &[], describe, conversion: Conversion::USUAL };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    for key in ["n_embd", "n_inner", "n_layer", "n_head", "n_positions"] {
        if config.get(key).is_some() && config.get("hidden_size").is_none() {
            let message = "the authors' own settings are not supported; those of transformers are".to_owned();
            return Err(config.unsupported(key, message));
        }
    }
    let defaults = SizeDefaults {
        vocabulary: 30_528,
        hidden: 768,
        intermediate: 3072,
        layers: 12,
        query_heads: 12,
        kv_heads: None,
        head_dim: None,
        context: 2048,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "layer_norm_eps", 1e-12)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let types = token_types(config)?;
    let rope =
        RopeSettings { theta: 1000.0, ..RopeSettings::new(config, sizes.head_dim, sizes.context) }.read()?;

    let base = roles.base("nomic_bert.", "embeddings.word_embeddings");
    // The authors' name of a module, or that of transformers.
    let either = |authors: String, other: String| {
        if roles.has(&format!("{base}{authors}.weight")) {
            format!("{base}{authors}")
        } else {
            format!("{base}{other}")
        }
    };
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let layer = |index: usize| {
        let name = |authors: &str, other: &str| {
            either(format!("encoder.layers.{index}.{authors}"), format!("layers.{index}.{other}"))
        };
        let linear = |authors: &str, other: &str, outputs, inputs| {
            roles.linear(&name(authors, other), outputs, inputs, false)
        };
        let (hidden, intermediate, width) = (sizes.hidden, sizes.intermediate, sizes.query_width());
        let fused = format!("{base}encoder.layers.{index}.attn.Wqkv");
        let inputs = if width == hidden && roles.has_matrix(&fused) {
            roles.fused_attention(&fused, hidden, false)?
        } else {
            let part = |name: &str| {
                roles.linear(&format!("{base}layers.{index}.self_attn.{name}"), width, hidden, false)
            };
            [part("q_proj")?, part("k_proj")?, part("v_proj")?]
        };
        let output = linear("attn.out_proj", "self_attn.o_proj", hidden, width)?;
        let attention = attention(&sizes, inputs, output, both_ways(sizes.scale(), None, Some(&rope)));
        let after_attention = norm(&name("norm1", "post_attention_layernorm"))?;
        let mlp = Mlp::Gated {
            gating: Gating::Activated(activation),
            gate: linear("mlp.fc12", "mlp.gate_proj", intermediate, hidden)?,
            up: linear("mlp.fc11", "mlp.up_proj", intermediate, hidden)?,
            norm: None,
            down: linear("mlp.fc2", "mlp.down_proj", hidden, intermediate)?,
        };
        let after_mlp = norm(&name("norm2", "post_mlp_layernorm"))?;
        Ok(sequential([normed_output(attention, after_attention), normed_output(mlp, after_mlp)]))
    };
    let outline = EncoderOutline {
        embedding: format!("{base}embeddings.word_embeddings"),
        positions: None,
        types: Some((format!("{base}embeddings.token_type_embeddings"), types)),
        embedding_norm: either("emb_ln".to_owned(), "embeddings.LayerNorm".to_owned()),
        norm: None,
    };
    roles.encoder(&sizes, &outline, norm, layer)
}
