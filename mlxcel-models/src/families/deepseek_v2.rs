//! DeepSeek-V2: latent attention, and experts that are routed by a softmax beside shared ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `DeepseekV2Config` and
//! `DeepseekV2ForCausalLM`. Choosing experts from the best groups, as the largest model does, is not
//! supported.

use mlxcel_core::Result;

use super::Family;
use super::experts::{ExpertSizes, PROJECTIONS, shared_experts, shared_width, softmax_router};
use super::latent::{LatentDefaults, LatentSettings};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{
    LARGEST_LAYER_COUNT, SizeDefaults, Sizes, activation, expect_flag, expect_text, flag, number,
};
use crate::decoder::{Activation, Decoder, Gating, Router};

pub(super) const FAMILY: Family = Family::new(&["deepseek_v2"], &[2], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 102_400,
    hidden: 4096,
    intermediate: 11_008,
    layers: 32,
    query_heads: 32,
    kv_heads: None,
    head_dim: Some(64),
    context: 2048,
};
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
    let mixer = |index: usize, layer: &str| attention.mixer(roles, index, layer);
    decoder_of(roles, &sizes, &Variant::PLAIN, mixer, |index, layer| {
        let module = format!("{layer}.mlp");
        if index < dense_layers {
            return Ok(roles.gated_mlp(&module, [hidden, sizes.intermediate], activation, biases)?.into());
        }
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = Router { scale, ..softmax_router(projection, false) };
        let linears = roles.experts(&module, PROJECTIONS, experts)?;
        let shared_module = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared_module, [hidden, shared], activation, biases)?;
        Ok(linears.routed(experts, router, Gating::Activated(activation), shared).into())
    })
}
