//! Kimi Linear: Kimi delta attention in most layers and latent attention without positions in the others, and
//! experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `KimiLinearConfig` and
//! `KimiLinearForCausalLM`; tensors have the names of published files, which transformers renames as it reads
//! them.

use super::deepseek_v3;
use super::experts::{GroupedDefaults, GroupedExperts};
use super::kimi_delta::KimiDelta;
use super::latent::{LatentDefaults, LatentSettings, Pairs, Rotated};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;
use crate::decoder::Decay;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["mlp.gate", "block_sparse_moe.gate"]),
    ..Family::new(&["kimi_linear"], &[163_586], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 163_840,
    hidden: 2304,
    intermediate: 9216,
    layers: 27,
    query_heads: 32,
    kv_heads: Some(32),
    context: 1_048_576,
    ..deepseek_v3::DEFAULTS
};
const LATENTS: LatentDefaults = LatentDefaults {
    query_rank: None,
    rotated: Rotated::Never,
    pairs: Pairs::Halves,
    ..LatentDefaults::DEEPSEEK
};
const EXPERTS: GroupedDefaults = GroupedDefaults {
    count: 256,
    width: 1024,
    groups: ExpertGroups { count: 1, kept: 1 },
    scale: 2.446,
    ..RENAMED
};
/// The names that Kimi Linear and Ling give the settings of experts.
pub(super) const RENAMED: GroupedDefaults = GroupedDefaults {
    count_keys: &["num_experts", "num_local_experts", "n_routed_experts"],
    shared_keys: &["num_shared_experts", "n_shared_experts"],
    chosen_keys: &["num_experts_per_token", "num_experts_per_tok"],
    groups_keys: &["num_expert_group", "n_group"],
    normalised_keys: &["moe_renormalize", "norm_topk_prob"],
    ..GroupedDefaults::PLAIN
};

/// Sizes of a family whose context has another name, and whose heads have no one width.
pub(super) fn renamed_sizes(config: Fields<'_>, defaults: &SizeDefaults) -> Result<Sizes> {
    let sizes = Sizes::read(config, defaults)?;
    let context = config.size("model_max_length", 1..=LARGEST_CONTEXT)?.unwrap_or(sizes.context);
    Ok(Sizes { context, ..sizes })
}

/// What `linear_attn_config` calls each layer, by lists of numbers that count from one; `None` without both
/// lists.
fn listed_types(config: Fields<'_>, layers: usize) -> Result<Option<Vec<&'static str>>> {
    let Some(inner) = config.object("linear_attn_config")? else { return Ok(None) };
    let (full, linear) = (inner.sizes("full_attn_layers")?, inner.sizes("kda_layers")?);
    let (Some(full), Some(linear)) = (full, linear) else { return Ok(None) };
    let kind = |index: usize| match (full.contains(&(index + 1)), linear.contains(&(index + 1))) {
        (_, true) => Ok(LINEAR),
        (true, false) => Ok(FULL),
        (false, false) => {
            let message =
                format!("layer {} is in neither list, of full_attn_layers and kda_layers", index + 1);
            Err(inner.wrong("kda_layers", message))
        }
    };
    (0..layers).map(kind).collect::<Result<_>>().map(Some)
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // Like transformers, this has no rotary embedding for it.
    expect_flag(config, "mla_use_nope", true)?;
    let sizes = renamed_sizes(config, &DEFAULTS)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?;
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let sparse = sparse_layer_types(config, sizes.layers, dense_layers)?;
    let listed = listed_types(config, sizes.layers)?;
    let types = layer_types(config, sizes.layers, &[FULL, LINEAR], |index| match &listed {
        Some(listed) => listed[index],
        None if index > 0 && index % 4 == 0 => FULL,
        None => LINEAR,
    })?;
    let delta = KimiDelta {
        hidden: sizes.hidden,
        heads: 32,
        dim: 128,
        taps: 4,
        decay_form: Decay::Softplus,
        activation,
        epsilon,
    };
    let delta = delta.read(config)?;
    let variant = Variant { epsilon: 1e-5, ..Variant::PLAIN };
    let mixer = |index: usize, layer: &str| match types[index] {
        LINEAR => Ok(Mixer::DeltaRule(delta.describe(roles, &format!("{layer}.self_attn"))?).into()),
        _ => attention.mixer(roles, index, layer),
    };
    variant.decoder_of(roles, &sizes, mixer, |index, layer| {
        // Published files have experts under the first name, and transformers writes MLPs there too.
        let probe = if sparse[index] { "gate" } else { "gate_proj" };
        let old = roles.has_matrix(&format!("{layer}.block_sparse_moe.{probe}"));
        let module = if old { "block_sparse_moe" } else { "mlp" };
        mixture.or_mlp(roles, &format!("{layer}.{module}"), sparse[index])
    })
}
