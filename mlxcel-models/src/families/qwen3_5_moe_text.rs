//! Qwen3.5 with experts in every layer, beside a shared one behind a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3_5MoeTextConfig` and
//! `Qwen3_5MoeForCausalLM`. The multi-token prediction layer, `mtp`, is the draft head.

use mlxcel_core::Result;

use super::experts::{ExpertSizes, gated_shared_expert};
use super::qwen3_5_text::decoder;
use super::roles::Roles;
use super::settings::{LARGEST_WIDTH, SizeDefaults, Sizes};
use super::{Conversion, Family};
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["mlp.gate", "shared_expert_gate"]),
    ..Family::new(&["qwen3_5_moe_text"], &[], describe)
};

// The class has no intermediate size: no layer is without experts.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 248_320,
    hidden: 2048,
    intermediate: 512,
    layers: 40,
    query_heads: 16,
    kv_heads: Some(2),
    head_dim: Some(256),
    context: 32_768,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(512);
    let experts =
        ExpertSizes::read(config, &sizes, &["num_experts"], 1, [256, 8])?.of_own_width(config, 512)?;
    decoder(roles, &sizes, |module, activation| {
        roles.softmax_experts(module, "gate", experts, true, activation, || {
            gated_shared_expert(roles, module, [hidden, shared_width], activation).map(Some)
        })
    })
}
