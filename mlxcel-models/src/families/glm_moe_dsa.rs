//! GLM-5: DeepSeek-V3.2 with other sizes, indexers whose rotary embedding is interleaved, and layers that use
//! the positions of layers before them.
//!
//! Config fields, defaults and arithmetic follow transformers' `GlmMoeDsaConfig` and `GlmMoeDsaForCausalLM`.
//! The multi-token prediction layers, which follow the others in the files, are ignored.

use mlxcel_core::Result;

use super::Family;
use super::deepseek_v32::{self, sparse_decoder};
use super::experts::GroupedDefaults;
use super::indexer::IndexerDefaults;
use super::latent::LatentDefaults;
use super::roles::Roles;
use super::settings::SizeDefaults;
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family::new(&["glm_moe_dsa"], &[1], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 154_880,
    hidden: 6144,
    intermediate: 12_288,
    layers: 78,
    query_heads: 64,
    kv_heads: None,
    head_dim: Some(64),
    context: 202_752,
};
const LATENTS: LatentDefaults = LatentDefaults {
    plain_dim: 192,
    value_dim: 256,
    query_rank: Some(2048),
    indexer: Some(IndexerDefaults { heads: 32, head_dim: 128, count: 2048, interleaved: true, shares: true }),
    ..LatentDefaults::DEEPSEEK
};
const EXPERTS: GroupedDefaults =
    GroupedDefaults { groups: GroupedDefaults::PLAIN.groups, ..deepseek_v32::EXPERTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    sparse_decoder(roles, &DEFAULTS, &LATENTS, &EXPERTS, 1e-5)
}
