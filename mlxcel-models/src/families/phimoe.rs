//! Phi-3.5-MoE: Mixtral with layer norms, biases, and a router that weights each of two experts among those
//! close to it.
//!
//! Config fields, defaults and arithmetic follow transformers' `PhimoeConfig` and `PhimoeForCausalLM`.

use super::experts::{ExpertSizes, expert_count, softmax_router};
use super::mistral;
use super::prelude::*;
use crate::rope::Kinds;

pub(super) const FAMILY: Family = Family::new(&["phimoe"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 32_064, intermediate: 6400, ..mistral::DEFAULTS };

/// The number of experts that the router chooses, which no setting changes.
const CHOSEN: usize = 2;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_number(config, "num_experts_per_tok", CHOSEN as f64)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope =
        RopeSettings { theta: 1_000_000.0, kinds: Kinds::ScaledLongRope, ..sizes.rope(config) }.read()?;
    let window = window(config, "sliding_window", None)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let count = expert_count(config, &["num_local_experts"], CHOSEN, 16)?;
    let experts = ExpertSizes { count, chosen: CHOSEN, hidden: sizes.hidden, width: sizes.intermediate };
    let scoring = Scoring::SparseMixer { tolerance: 2.0 * number(config, "router_jitter_noise", 0.01)? };
    let variant = Variant {
        epsilon: 1e-5,
        norm_kind: NormKind::Layer,
        attention_biases: AttentionBiases::read(config)?,
        head_bias: flag(config, "lm_head_bias", false)?,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), window, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        // transformers has renamed the modules, and reads all.
        let gates = ["block_sparse_moe.gate", "mlp.router", "mlp.gate"].map(|gate| format!("{layer}.{gate}"));
        let gate = roles.first_matrix(&gates);
        let router =
            Router { scoring, ..softmax_router(roles.linear(&gate, count, sizes.hidden, false)?, false) };
        let module = gate.rsplit_once('.').map_or(gate.as_str(), |(module, _)| module);
        roles.mixture(module, ["w1", "w3", "w2"], experts, router, activation, None)
    })
}
