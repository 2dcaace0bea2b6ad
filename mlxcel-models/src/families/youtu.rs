//! Youtu-LLM: DeepSeek-V3's latent attention, and MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `YoutuConfig` and `YoutuForCausalLM`.

use super::deepseek_v3;
use super::latent::{LatentDefaults, LatentSettings, Pairs};
use super::prelude::*;

// The second is mlx-lm's name, and that of the first published files.
pub(super) const FAMILY: Family = Family::new(&["youtu", "youtu_llm"], &[128_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_256,
    hidden: 2048,
    intermediate: 6144,
    layers: 32,
    query_heads: 16,
    kv_heads: Some(16),
    context: 131_072,
    ..deepseek_v3::DEFAULTS
};
const LATENTS: LatentDefaults = LatentDefaults { pairs: Pairs::AdjacentIfSet, ..LatentDefaults::DEEPSEEK };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // What mlx-lm reads beyond that.
    expect_flag(config, "mlp_bias", false)?;
    expect_flag(config, "rope_traditional", true)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?;
    let variant = Variant { tied: true, ..Variant::PLAIN };
    let mixer = |index: usize, layer: &str| attention.mixer(roles, index, layer);
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, mixer, |_, layer| mlp(layer))
}
