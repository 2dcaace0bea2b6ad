//! DeepSeek-V2: latent attention, and experts that are routed by a softmax beside shared ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `DeepseekV2Config` and
//! `DeepseekV2ForCausalLM`. Choosing experts from the best groups, as the largest model does, is not
//! supported.

use super::experts::{ExpertSizes, shared_experts, shared_width, softmax_router};
use super::latent::{LatentDefaults, LatentSettings};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["deepseek_v2"], &[2], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 102_400, head_dim: Some(64), ..SizeDefaults::LLAMA };
const LATENTS: LatentDefaults = LatentDefaults::DEEPSEEK;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_text(config, "topk_method", "greedy")?;
    expect_text(config, "scoring_func", "softmax")?;
    expect_flag(config, "norm_topk_prob", false)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let biases = flag(config, "mlp_bias", false)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
    let experts = ExpertSizes::read(config, &sizes, &["n_routed_experts", "num_experts"], 1, [64, 6])?;
    let experts = experts.of_own_width(config, 1407)?;
    let scale = number(config, "routed_scaling_factor", 1.0)?;
    let shared = match config.get("n_shared_experts") {
        None => 2 * experts.width,
        Some(_) => shared_width(config, "n_shared_experts", experts.width)?,
    };
    let variant = Variant { mlp_biases: biases, ..Variant::PLAIN };
    let mixer = |index: usize, layer: &str| attention.mixer(roles, index, layer);
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, mixer, |index, layer| {
        if index < dense_layers {
            return mlp(layer);
        }
        let module = format!("{layer}.mlp");
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = Router { scale, ..softmax_router(projection, false) };
        let shared_module = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared_module, [hidden, shared], activation, biases)?;
        roles.mixture(&module, PROJECTIONS, experts, router, activation, shared)
    })
}
