//! Youtu-LLM: DeepSeek-V3's latent attention, and MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `YoutuConfig` and `YoutuForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::latent::{LatentDefaults, LatentSettings, Pairs};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, expect_flag};
use crate::decoder::{Activation, Decoder};

// The second is mlx-lm's name, and that of the first published files.
pub(super) const FAMILY: Family = Family::new(&["youtu", "youtu_llm"], &[128_001], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_256,
    hidden: 2048,
    intermediate: 6144,
    layers: 32,
    query_heads: 16,
    kv_heads: Some(16),
    head_dim: Some(64),
    context: 131_072,
};
const LATENTS: LatentDefaults = LatentDefaults { pairs: Pairs::AdjacentIfSet, ..LatentDefaults::DEEPSEEK };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // What mlx-lm reads beyond that.
    expect_flag(config, "mlp_bias", false)?;
    expect_flag(config, "rope_traditional", true)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let shape = [sizes.hidden, sizes.intermediate];
    let variant = Variant { tied: true, ..Variant::PLAIN };
    let mixer = |index: usize, layer: &str| attention.mixer(roles, index, layer);
    decoder_of(roles, &sizes, &variant, mixer, |_, layer| {
        Ok(roles.gated_mlp(&format!("{layer}.mlp"), shape, activation, false)?.into())
    })
}
