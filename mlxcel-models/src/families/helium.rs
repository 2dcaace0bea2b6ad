//! Helium: Llama with rotary embedding of adjacent elements.
//!
//! Config fields, defaults and arithmetic follow transformers' `HeliumConfig` and `HeliumForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["helium"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 48_000,
    hidden: 2560,
    intermediate: 7040,
    layers: 24,
    query_heads: 20,
    kv_heads: Some(20),
    head_dim: Some(128),
    context: 4096,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = RopeSettings { theta: 100_000.0, interleaved: true, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-8,
        attention_biases: AttentionBiases::inputs(flag(config, "attention_bias", false)?),
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
