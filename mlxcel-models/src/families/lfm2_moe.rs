//! LFM2 with experts: LFM2 with experts in all but the first layers, routed by sigmoids.
//!
//! Config fields, defaults and arithmetic follow transformers' `Lfm2MoeConfig` and `Lfm2MoeForCausalLM`.

use super::experts::{ExpertSizes, sigmoid_router};
use super::lfm2::{self, decoder, feed_forward};
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["feed_forward.gate"]),
    ..Family::new(&["lfm2_moe"], &[2], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults { hidden: 2048, intermediate: 7168, ..lfm2::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let dense_layers = config.size("num_dense_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(2);
    let experts = ExpertSizes::read(config, &sizes, &["num_experts"], 1, [32, 4])?;
    let experts = experts.of_own_width(config, 1792)?;
    let biased = flag(config, "use_expert_bias", true)?;
    let normalised = flag(config, "norm_topk_prob", true)?;
    let scale = number(config, "routed_scaling_factor", 1.0)?;
    decoder(roles, &sizes, |index, module| {
        if index < dense_layers {
            return feed_forward(roles, module, [hidden, sizes.intermediate]);
        }
        let bias = format!("{module}.expert_bias");
        let bias = biased.then(|| roles.tensor(&bias, &[experts.count])).transpose()?;
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = Router { normaliser: 1e-6, scale, ..sigmoid_router(projection, bias, normalised) };
        roles.mixture(module, ["w1", "w3", "w2"], experts, router, Activation::Silu, None)
    })
}
