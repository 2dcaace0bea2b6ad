//! dots.llm1: Qwen3's attention, with windows in some layers, and DeepSeek-V3's experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `Dots1Config` and `Dots1ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::experts::{GroupedDefaults, GroupedExperts};
use super::llama::{HEAD_NORMS, Variant, decoder_with};
use super::roles::Roles;
use super::settings::{LARGEST_LAYER_COUNT, SizeDefaults, Sizes, activation, flag, sliding_windows, window};
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["dots1"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 152_064,
    hidden: 4608,
    intermediate: 10_944,
    layers: 62,
    query_heads: 32,
    kv_heads: Some(32),
    head_dim: None,
    context: 2048,
};
const EXPERTS: GroupedDefaults =
    GroupedDefaults { count: 128, chosen: 6, width: 1408, normalised: false, ..GroupedDefaults::PLAIN };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let window = window(config, "sliding_window", Some(4096))?;
    let first = config.size("max_window_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(62);
    let is_sliding = |index| window.is_some() && index >= first;
    let windows = sliding_windows(config, sizes.layers, window, is_sliding)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let variant = Variant {
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        head_norms: HEAD_NORMS,
        ..Variant::PLAIN
    };
    let core = |index: usize| core(sizes.scale(), windows[index], Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |index, layer| {
        mixture.or_mlp(roles, &format!("{layer}.mlp"), index >= dense_layers)
    })
}
