//! Glm4-MoE (GLM-4.5 and later): GLM's attention with partial rotary embedding, and DeepSeek-V3's experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `Glm4MoeConfig` and `Glm4MoeForCausalLM`. The
//! first multi-token prediction layer, which follows the others in the files, is the draft head.

use super::experts::{GroupedDefaults, GroupedExperts};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["glm4_moe"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_552,
    intermediate: 10_944,
    layers: 46,
    query_heads: 96,
    kv_heads: Some(8),
    context: 131_072,
    ..SizeDefaults::LLAMA
};

const EXPERTS: GroupedDefaults =
    GroupedDefaults { count: 128, chosen: 8, width: 1408, ..GroupedDefaults::PLAIN };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let normed = flag(config, "use_qk_norm", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::inputs(flag(config, "attention_bias", false)?),
        head_norms: HEAD_NORMS.filter(|_| normed),
        draft_head: true,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        mixture.or_mlp(roles, &format!("{layer}.mlp"), index >= dense_layers.min(sizes.layers))
    })
}
