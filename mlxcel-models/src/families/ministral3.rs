//! Ministral 3: Mistral with YaRN, and queries scaled by position.
//!
//! Config fields, defaults and arithmetic follow transformers' `Ministral3Config` and
//! `Ministral3ForCausalLM`.

use super::mistral;
use super::prelude::*;
use crate::config::Config;
use crate::decoder::PositionScale;
use crate::rope::is_described;

pub(super) const FAMILY: Family = Family::new(&["ministral3"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 131_072,
    layers: 34,
    head_dim: Some(128),
    context: 262_144,
    ..mistral::DEFAULTS
};
/// The rotary settings where there are none.
const ROPE: &[u8] = br#"{"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
    "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
    "llama_4_scaling_beta": 0.1}}"#;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let window = window(config, "sliding_window", None)?;
    let assumed = Config::parse("defaults of ministral3".to_owned(), ROPE)?;
    let rotary = if is_described(config, 16_384.0)? { config } else { assumed.fields() };
    let rope = sizes.rope(rotary).read()?;
    let query_scale = query_scale(rotary, sizes.context)?;
    let variant = Variant { epsilon: 1e-5, ..Variant::PLAIN };
    variant
        .decoder(roles, &sizes, |_| AttentionCore { query_scale, ..core(sizes.scale(), window, Some(&rope)) })
}

/// How queries grow: from each multiple of the original context on by a little more.
pub(super) fn query_scale(config: Fields<'_>, context: usize) -> Result<Option<PositionScale>> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let rotary = match config.object("rope_scaling")? {
        Some(rotary) => Some(rotary),
        None => config.object("rope_parameters")?,
    };
    let Some(rotary) = rotary else { return Ok(None) };
    let Some(beta) = rotary.number("llama_4_scaling_beta")? else { return Ok(None) };
    let original_context = match config.size(ORIGINAL, 1..=LARGEST_CONTEXT)? {
        Some(original) => original,
        None => rotary.size(ORIGINAL, 1..=LARGEST_CONTEXT)?.unwrap_or(context),
    };
    Ok(Some(PositionScale { beta: beta as f32, original_context, offset: 0 }))
}
