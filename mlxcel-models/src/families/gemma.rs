//! Gemma: a scaled embedding, norms stored minus one, and MLPs gated by GELU.
//!
//! Config fields, defaults and arithmetic follow transformers' `GemmaConfig` and `GemmaForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["gemma"], &[1], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 256_000,
    hidden: 3072,
    intermediate: 24_576,
    layers: 28,
    query_heads: 16,
    kv_heads: Some(16),
    head_dim: Some(256),
    context: 8192,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "use_bidirectional_attention", false)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let activation = match activation(config, "hidden_act", Activation::GeluTanh)? {
        // What the first releases say, and do not mean.
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    let variant = Variant {
        norm_offset: 1.0,
        attention_biases: AttentionBiases::read(config)?,
        tied: true,
        embedding_scale: embedding_scale(&sizes),
        ..Variant::PLAIN
    };
    let shape = [sizes.hidden, sizes.intermediate];
    let core = |_| core(sizes.scale(), None, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        Ok(roles.gated_mlp(&format!("{layer}.mlp"), shape, activation, false)?.into())
    })
}

/// What all generations of Gemma multiply embeddings with.
pub(super) fn embedding_scale(sizes: &Sizes) -> f32 {
    (sizes.hidden as f64).sqrt() as f32
}
