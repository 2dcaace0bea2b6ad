//! K-EXAONE: EXAONE 4's attention behind norms, and DeepSeek-V3's experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `ExaoneMoeConfig` and `ExaoneMoeForCausalLM`.
//! The multi-token prediction layers, `mtp`, are ignored.

use super::exaone4::{DEFAULTS, views};
use super::experts::{GroupedDefaults, GroupedExperts};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family::new(&["exaone_moe"], &[53], describe);

const EXPERTS: GroupedDefaults = GroupedDefaults {
    count_keys: &["num_experts"],
    shared_keys: &["num_shared_experts"],
    scale: 2.5,
    ..GroupedDefaults::PLAIN
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let views = views(config, sizes.layers)?;
    let rope = sizes.rope(config).read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let sparse = sparse_layer_types(config, sizes.layers, dense_layers)?;
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let variant = Variant { epsilon: 1e-5, head_norms: HEAD_NORMS, ..Variant::PLAIN };
    let core = |index: usize| {
        let (window, rotated) = views[index];
        core(sizes.scale(), window, Some(&rope).filter(|_| rotated))
    };
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        mixture.or_mlp(roles, &format!("{layer}.mlp"), sparse[index])
    })
}
