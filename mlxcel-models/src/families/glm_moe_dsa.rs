//! GLM-5: DeepSeek-V3.2 with other sizes, indexers whose rotary embedding is interleaved, and layers that use
//! the positions of layers before them.
//!
//! Config fields, defaults and arithmetic follow transformers' `GlmMoeDsaConfig` and `GlmMoeDsaForCausalLM`.
//! The multi-token prediction layers, which follow the others in the files, are ignored.

use super::deepseek_v3;
use super::deepseek_v32::{self, sparse_decoder};
use super::experts::GroupedDefaults;
use super::indexer::IndexerDefaults;
use super::latent::LatentDefaults;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["glm_moe_dsa"], &[1], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 154_880,
    hidden: 6144,
    intermediate: 12_288,
    layers: 78,
    query_heads: 64,
    context: 202_752,
    ..deepseek_v3::DEFAULTS
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
