//! Qwen3.5 with experts in every layer, beside a shared one behind a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3_5MoeTextConfig` and
//! `Qwen3_5MoeForCausalLM`. The multi-token prediction layer, `mtp`, is the draft head.

use super::experts::{ExpertSizes, gated_shared_expert};
use super::prelude::*;
use super::qwen3_5_text::decoder;
use super::qwen3_next;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["mlp.gate", "shared_expert_gate"]),
    ..Family::new(&["qwen3_5_moe_text"], &[], describe)
};

// The class has no intermediate size: no layer is without experts.
const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 248_320, intermediate: 512, layers: 40, ..qwen3_next::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(512);
    let experts =
        ExpertSizes::read(config, &sizes, &["num_experts"], 1, [256, 8])?.of_own_width(config, 512)?;
    decoder(roles, &sizes, |module, activation| {
        let shared = gated_shared_expert(roles, module, [sizes.hidden, shared_width], activation)?;
        roles.softmax_experts(module, "gate", experts, true, activation, shared)
    })
}
