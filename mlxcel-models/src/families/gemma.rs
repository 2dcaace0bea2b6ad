//! Gemma: a scaled embedding, norms stored minus one, and MLPs gated by GELU.
//!
//! Config fields, defaults and arithmetic follow transformers' `GemmaConfig` and `GemmaForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, expect_flag, flag, positive};
use super::{Conversion, Family};
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family =
    Family { model_types: &["gemma"], stop_tokens: &[1], describe, conversion: Conversion::USUAL };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 256_000,
        hidden: 3072,
        intermediate: 24_576,
        layers: 28,
        query_heads: 16,
        kv_heads: Some(16),
        head_dim: Some(256),
        context: 8192,
    };
    expect_flag(config, "use_bidirectional_attention", false)?;
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let tied = flag(config, "tie_word_embeddings", true)?;
    let rope = sizes.rope(config).read()?;
    let activation = match activation(config, "hidden_act", Activation::GeluTanh)? {
        // What the first releases say, and do not mean.
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.offset_rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), None, Some(&rope));
        Ok(sequential([
            pre_norm(
                norm(&name("input_layernorm"))?,
                roles.attention(&name("self_attn"), &sizes, biases, core)?,
            ),
            pre_norm(
                norm(&name("post_attention_layernorm"))?,
                roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?,
            ),
        ]))
    };
    let outline = Outline { embedding_scale: embedding_scale(&sizes), ..Outline::new(&sizes, &base, tied) };
    roles.decoder(outline, norm, layer)
}

/// What all generations of Gemma multiply embeddings with.
pub(super) fn embedding_scale(sizes: &Sizes) -> f32 {
    (sizes.hidden as f64).sqrt() as f32
}
