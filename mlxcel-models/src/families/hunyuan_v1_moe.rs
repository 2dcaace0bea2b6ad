//! Hunyuan with experts beside an MLP that all tokens go through.
//!
//! Config fields, defaults and arithmetic follow transformers' `HunYuanMoEV1Config` and
//! `HunYuanMoEV1ForCausalLM`.

use super::experts::{ExpertSizes, counts_by_layer, present, shared_experts};
use super::hunyuan_v1_dense::structure;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["hunyuan_v1_moe"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // Keys of published files beyond what transformers implements.
    expect_flag(config, "use_mixed_mlp_moe", true)?;
    expect_flag(config, "norm_topk_prob", true)?;
    expect_number(config, "moe_layer_num_skipped", 0.0)?;
    let (sizes, variant, core) = structure(config)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let counts = counts_by_layer(config, &["num_local_experts", "num_experts"], sizes.layers)?;
    let chosen = counts_by_layer(config, CHOSEN, sizes.layers)?;
    if let Some((chosen, count)) = chosen.iter().zip(&counts).find(|(chosen, count)| chosen > count) {
        return Err(
            config.wrong(present(config, CHOSEN), format!("{chosen} of {count} experts cannot be chosen"))
        );
    }
    let shape = [sizes.hidden, sizes.intermediate];
    let core = |_| core.clone();
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        let module = format!("{layer}.mlp");
        let [hidden, width] = shape;
        let experts = ExpertSizes { count: counts[index], chosen: chosen[index], hidden, width };
        let shared = shared_experts(roles, &format!("{module}.shared_mlp"), shape, activation, false)?;
        roles.softmax_experts(&module, "gate.wg", experts, true, activation, shared)
    })
}

/// The names of the number of experts per token.
const CHOSEN: &[&str] = &["num_experts_per_tok", "moe_topk"];
