//! DeepSeek-V3 (and R1): latent attention, and experts in groups beside shared ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `DeepseekV3Config` and
//! `DeepseekV3ForCausalLM`; attention is the same in the absorbed form. The first
//! multi-token prediction layer, which follows the others in the files, is the draft head.

use super::experts::{GroupedDefaults, GroupedExperts};
use super::latent::{LatentDefaults, LatentSettings, Pairs};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["deepseek_v3"], &[1], describe);

// Heads have no one width: the class sets `head_dim` to that of their rotated part, and nothing reads it.
pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 129_280,
    hidden: 7168,
    intermediate: 18_432,
    layers: 61,
    query_heads: 128,
    kv_heads: None,
    head_dim: Some(64),
    context: 4096,
};
const LATENTS: LatentDefaults = LatentDefaults { pairs: Pairs::AdjacentIfSet, ..LatentDefaults::DEEPSEEK };
pub(super) const EXPERTS: GroupedDefaults = GroupedDefaults {
    count: 256,
    width: 2048,
    groups: ExpertGroups { count: 8, kept: 4 },
    scale: 2.5,
    ..GroupedDefaults::PLAIN
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    refuse_other_experts(config)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(3);
    decoder(roles, config, &sizes, &LATENTS, &EXPERTS, 1e-6, |index| index >= dense_layers)
}

/// The decoder of a checkpoint with DeepSeek-V3's structure and tensor names, whose layers have experts if
/// they are `sparse` and whose settings of positions are in `rotary`.
pub(super) fn decoder(
    roles: &Roles<'_>,
    rotary: Fields<'_>,
    sizes: &Sizes,
    latents: &LatentDefaults,
    experts: &GroupedDefaults,
    epsilon: f64,
    sparse: impl Fn(usize) -> bool,
) -> Result<Decoder> {
    let config = roles.config;
    let attention = LatentSettings::read(config, rotary, sizes, latents)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let mixture = GroupedExperts::read(config, sizes, activation, experts)?;
    let variant = Variant { epsilon, draft_head: true, ..Variant::PLAIN };
    let mixer = |index: usize, layer: &str| attention.mixer(roles, index, layer);
    variant.decoder_of(roles, sizes, mixer, |index, layer| {
        mixture.or_mlp(roles, &format!("{layer}.mlp"), index >= sizes.layers || sparse(index))
    })
}

/// The errors for what the authors' own implementation can do and this one, like transformers, cannot.
pub(super) fn refuse_other_experts(config: Fields<'_>) -> Result<()> {
    expect_text(config, "scoring_func", "sigmoid")?;
    expect_text(config, "topk_method", "noaux_tc")?;
    const FREQUENCY: &str = "moe_layer_freq";
    match config.size(FREQUENCY, 1..=LARGEST_LAYER_COUNT)? {
        None | Some(1) => Ok(()),
        Some(_) => {
            let message = "experts in only some of the layers behind first_k_dense_replace are not supported"
                .to_owned();
            Err(config.unsupported(FREQUENCY, message))
        }
    }
}
