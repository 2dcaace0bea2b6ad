//! Mistral 4: DeepSeek-V3's latent attention with queries scaled by position, and experts in groups that are
//! routed by a softmax.
//!
//! Config fields, defaults and arithmetic follow transformers' `Mistral4Config` and `Mistral4ForCausalLM`.

use super::deepseek_v3::decoder;
use super::experts::GroupedDefaults;
use super::latent::{LatentDefaults, Pairs, Rotated};
use super::ministral3::query_scale;
use super::prelude::*;
use crate::config::Config;
use crate::rope::is_described;

pub(super) const FAMILY: Family = Family::new(&["mistral4"], &[2], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 131_072,
    intermediate: 12_288,
    layers: 36,
    kv_heads: Some(32),
    head_dim: Some(128),
    context: 1_048_576,
    ..SizeDefaults::LLAMA
};
const LATENTS: LatentDefaults = LatentDefaults {
    plain_dim: 64,
    rank: 256,
    query_rank: Some(1024),
    rotated: Rotated::PartOfHead,
    pairs: Pairs::AdjacentIfSet,
    query_scale: Some(query_scale),
    ..LatentDefaults::DEEPSEEK
};
const EXPERTS: GroupedDefaults = GroupedDefaults {
    count: 128,
    chosen: 4,
    width: 2048,
    scoring: Scoring::Softmax,
    ..GroupedDefaults::PLAIN
};
/// The rotary settings where there are none.
const ROPE: &[u8] = br#"{"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
    "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
    "llama_4_scaling_beta": 0.1}}"#;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let assumed = Config::parse("defaults of mistral4".to_owned(), ROPE)?;
    let rotary = if is_described(config, 8192.0)? { config } else { assumed.fields() };
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
    decoder(roles, rotary, &sizes, &LATENTS, &EXPERTS, 1e-6, |index| index >= dense_layers)
}
