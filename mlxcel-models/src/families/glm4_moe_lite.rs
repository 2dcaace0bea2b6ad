//! GLM-4.7-Flash: DeepSeek-V3's latent attention and experts with other sizes, and layers without experts by
//! a list.
//!
//! Config fields, defaults and arithmetic follow transformers' `Glm4MoeLiteConfig` and
//! `Glm4MoeLiteForCausalLM`. The first multi-token prediction layer, which follows the others in the files, is
//! the draft head.

use super::deepseek_v3::decoder;
use super::experts::GroupedDefaults;
use super::latent::{LatentDefaults, Pairs, Rotated};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family::new(&["glm4_moe_lite"], &[1], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 154_880,
    hidden: 2048,
    intermediate: 10_240,
    layers: 47,
    query_heads: 20,
    kv_heads: Some(20),
    head_dim: Some(64),
    context: 202_752,
};
const LATENTS: LatentDefaults = LatentDefaults {
    plain_dim: 192,
    value_dim: 256,
    query_rank: Some(768),
    rotated: Rotated::OwnHead,
    pairs: Pairs::AdjacentIfSet,
    ..LatentDefaults::DEEPSEEK
};
const EXPERTS: GroupedDefaults =
    GroupedDefaults { count: 64, chosen: 4, width: 1536, scale: 1.8, ..GroupedDefaults::PLAIN };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let sizes = Sizes::read(roles.config, &DEFAULTS)?;
    let sparse = sparse_layer_types(roles.config, sizes.layers, 1)?;
    decoder(roles, roles.config, &sizes, &LATENTS, &EXPERTS, 1e-5, |index| sparse[index])
}
