//! DeepSeek-V3.2: DeepSeek-V3 whose attention sees the positions that an indexer selects.
//!
//! Config fields, defaults and arithmetic follow transformers' `DeepseekV32Config` and
//! `DeepseekV32ForCausalLM`. The authors' kernels rotate the indexer's queries and keys by a Hadamard matrix,
//! which leaves their products as they are, and round them to eight bits, which is not done here. The
//! multi-token prediction layers, which follow the others in the files, are ignored.

use super::deepseek_v3::{self, decoder, refuse_other_experts};
use super::experts::GroupedDefaults;
use super::indexer::IndexerDefaults;
use super::latent::LatentDefaults;
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family::new(&["deepseek_v32"], &[1], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults { context: 163_840, ..deepseek_v3::DEFAULTS };
const LATENTS: LatentDefaults = LatentDefaults {
    indexer: Some(IndexerDefaults {
        heads: 64,
        head_dim: 128,
        count: 2048,
        interleaved: false,
        shares: false,
    }),
    ..LatentDefaults::DEEPSEEK
};
pub(super) const EXPERTS: GroupedDefaults = GroupedDefaults {
    count_keys: &["num_experts", "n_routed_experts", "num_local_experts"],
    ..deepseek_v3::EXPERTS
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    sparse_decoder(roles, &DEFAULTS, &LATENTS, &EXPERTS, 1e-6)
}

/// The decoder of a checkpoint with DeepSeek-V3.2's settings and tensor names.
pub(super) fn sparse_decoder(
    roles: &Roles<'_>,
    sizes: &SizeDefaults,
    latents: &LatentDefaults,
    experts: &GroupedDefaults,
    epsilon: f64,
) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, sizes)?;
    refuse_other_experts(config)?;
    refuse_others(config, sizes.layers)?;
    let first = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(3);
    let sparse = sparse_layer_types(config, sizes.layers, first)?;
    decoder(roles, config, &sizes, latents, experts, epsilon, |index| sparse[index])
}

/// Refuses what the reference implementation does not do.
fn refuse_others(config: Fields<'_>, layers: usize) -> Result<()> {
    const INDEXED: &str = "indexed_attention";
    layer_types(config, layers, &[INDEXED], |_| INDEXED)?;
    expect_flag(config, "rope_interleave", true)?;
    expect_flag(config, "mlp_bias", false)?;
    // The width of queries follows from those of its parts, which have to be there for it to matter.
    let parts = [config.number("qk_nope_head_dim")?, config.number("qk_rope_head_dim")?];
    if let [Some(plain), Some(rotated)] = parts {
        expect_number(config, "qk_head_dim", plain + rotated)?;
    }
    Ok(())
}
