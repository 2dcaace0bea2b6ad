//! Solar Open: Llama's attention, and Glm4-MoE's experts in every layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `SolarOpenConfig` and `SolarOpenForCausalLM`.

use super::experts::{GroupedDefaults, GroupedExperts};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["solar_open"], &[], describe);

// The class has no intermediate size: no layer is without experts.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 196_608,
    hidden: 4096,
    intermediate: 10_240,
    layers: 48,
    query_heads: 64,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 131_072,
};
const EXPERTS: GroupedDefaults = GroupedDefaults { count: 128, width: 1280, ..GroupedDefaults::PLAIN };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = RopeSettings { theta: 1_000_000.0, ..sizes.rope(config) }.read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::inputs(flag(config, "attention_bias", false)?),
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |_, layer| mixture.or_mlp(roles, &format!("{layer}.mlp"), true))
}
