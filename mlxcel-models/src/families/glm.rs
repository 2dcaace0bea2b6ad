//! GLM-4-9B and GLM-Edge: Llama with a fused gate, and rotary embedding of adjacent elements in half of each
//! head.
//!
//! Config fields, defaults and arithmetic follow transformers' `GlmConfig` and `GlmForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag};
use crate::decoder::{Activation, Decoder};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["glm"], &[151_329, 151_336, 151_338], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_552,
    hidden: 4096,
    intermediate: 13_696,
    layers: 40,
    query_heads: 32,
    kv_heads: Some(2),
    head_dim: Some(128),
    context: 131_072,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, interleaved: true, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1.5625e-7,
        attention_biases: AttentionBiases::inputs(flag(config, "attention_bias", true)?),
        ..Variant::PLAIN
    };
    let shape = [sizes.hidden, sizes.intermediate];
    let core = |_| core(sizes.scale(), None, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        Ok(roles.fused_gated_mlp(&format!("{layer}.mlp"), shape, activation)?.into())
    })
}
