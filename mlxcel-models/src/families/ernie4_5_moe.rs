//! ERNIE 4.5 with experts: ERNIE 4.5's attention, and experts that are routed by a softmax with a bias that
//! only the choice sees.
//!
//! Config fields, defaults and arithmetic follow transformers' `Ernie4_5_MoeConfig` and
//! `Ernie4_5_MoeForCausalLM`. The multi-token prediction layers, `mtp`, are ignored.

use super::experts::{ExpertSizes, chosen_of, expert_count, shared_experts, softmax_router};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["ernie4_5_moe"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 103_424,
    hidden: 2560,
    intermediate: 12_288,
    layers: 28,
    query_heads: 20,
    kv_heads: Some(4),
    head_dim: None,
    context: 131_072,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // With biases transformers' experts have none, and its head has one.
    expect_flag(config, "use_bias", false)?;
    refuse_lower_bound(config)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = RopeSettings { theta: 500_000.0, interleaved: true, ..sizes.rope(config) }.read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = expert_sizes(config, sizes.hidden)?;
    let is_sparse = sparse_layers(config)?;
    let shared = config.size("moe_num_shared_experts", 0..=64)?.unwrap_or(2) * experts.width;
    let variant = Variant { epsilon: 1e-5, tied: true, ..Variant::PLAIN };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        if !is_sparse(index) {
            return mlp(layer);
        }
        let module = format!("{layer}.mlp");
        // transformers has moved the bias, and reads both.
        let biases = ["moe_statics", "gate.moe_statics"]
            .map(|statics| format!("{module}.{statics}.e_score_correction_bias"));
        let bias = biases.iter().find(|bias| roles.has(bias));
        let bias = bias.map(|bias| roles.dense(bias, &[1, experts.count])).transpose()?;
        let selection_bias = bias.map(|bias| roles.add(bias.reshaped([experts.count])));
        let projection = roles.linear(&format!("{module}.gate"), experts.count, sizes.hidden, false)?;
        let router = Router { selection_bias, ..softmax_router(projection, true) };
        let shared_module = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared_module, [sizes.hidden, shared], activation, false)?;
        roles.mixture(&module, PROJECTIONS, experts, router, activation, shared)
    })
}

fn expert_sizes(config: Fields<'_>, hidden: usize) -> Result<ExpertSizes> {
    let count = expert_count(config, &["moe_num_experts", "num_experts"], 1, 64)?;
    let chosen = chosen_of(config, &["num_experts_per_tok", "moe_k"], count, 6)?;
    let width = config.size("moe_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(1536);
    Ok(ExpertSizes { count, chosen, hidden, width })
}

/// Reads which layers have experts: every `moe_layer_interval`-th from `moe_layer_start_index` to
/// `moe_layer_end_index`, which is the last layer if it is −1.
fn sparse_layers(config: Fields<'_>) -> Result<impl Fn(usize) -> bool> {
    const LAST: &str = "moe_layer_end_index";
    let first = config.size("moe_layer_start_index", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let is_open = config.get(LAST).is_none_or(|last| last.as_i64() == Some(-1));
    let last = if is_open { None } else { config.size(LAST, 0..=LARGEST_LAYER_COUNT)? };
    let interval = config.size("moe_layer_interval", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    Ok(move |index: usize| {
        (index + 1).is_multiple_of(interval) && index >= first && last.is_none_or(|last| index <= last)
    })
}

/// Refuses a lower bound of the weights' sum that is not negligible.
fn refuse_lower_bound(config: Fields<'_>) -> Result<()> {
    const BOUND: &str = "moe_norm_min";
    match config.number(BOUND)? {
        Some(bound) if bound > 1e-10 => {
            Err(config.unsupported(BOUND, format!("a lower bound of {bound} is not supported; 1e-12 is")))
        }
        _ => Ok(()),
    }
}
