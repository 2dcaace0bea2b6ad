//! GLM-4-9B and GLM-Edge: Llama with a fused gate, and rotary embedding of adjacent elements in half of each
//! head.
//!
//! Config fields, defaults and arithmetic follow transformers' `GlmConfig` and `GlmForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["glm"], &[151_329, 151_336, 151_338], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_552,
    intermediate: 13_696,
    layers: 40,
    kv_heads: Some(2),
    head_dim: Some(128),
    context: 131_072,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    decoder(roles, None)
}

/// The decoder of a checkpoint with GLM's structure and tensor names; `norms_after` are the names of the norms
/// after attention and after the MLP, if there are any.
pub(super) fn decoder(roles: &Roles<'_>, norms_after: Option<[&'static str; 2]>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, interleaved: true, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1.5625e-7,
        norms_after,
        attention_biases: AttentionBiases::inputs(flag(config, "attention_bias", true)?),
        mlp_form: MlpForm::Fused,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
