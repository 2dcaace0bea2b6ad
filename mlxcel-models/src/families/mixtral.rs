//! Mixtral: Mistral with experts instead of MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `MixtralConfig` and `MixtralForCausalLM`.

use super::experts::{ExpertSizes, softmax_router};
use super::mistral::DEFAULTS;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["mixtral"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = RopeSettings { theta: 1_000_000.0, ..sizes.rope(config) }.read()?;
    let window = window(config, "sliding_window", None)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts", "num_experts"], 1, [8, 2])?;

    let variant = Variant { epsilon: 1e-5, ..Variant::PLAIN };
    let core = |_| core(sizes.scale(), window, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        // transformers has renamed the module, and reads both.
        let gates = [format!("{layer}.block_sparse_moe.gate"), format!("{layer}.mlp.gate")];
        let gate = roles.first_matrix(&gates);
        let router = softmax_router(roles.linear(&gate, experts.count, sizes.hidden, false)?, true);
        let module = gate.trim_end_matches(".gate");
        roles.mixture(module, ["w1", "w3", "w2"], experts, router, activation, None)
    })
}
