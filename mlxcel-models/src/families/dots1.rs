//! dots.llm1: Qwen3's attention, with windows in some layers, and DeepSeek-V3's experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `Dots1Config` and `Dots1ForCausalLM`.

use super::experts::{GroupedDefaults, GroupedExperts};
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { experts: "experts", ..Conversion::USUAL },
    ..Family::new(&["dots1"], &[], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 152_064,
    hidden: 4608,
    intermediate: 10_944,
    layers: 62,
    kv_heads: Some(32),
    ..SizeDefaults::LLAMA
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
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { attention_biases, head_norms: HEAD_NORMS, ..Variant::PLAIN };
    let core = |index: usize| core(sizes.scale(), windows[index], Some(&rope));
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        mixture.or_mlp(roles, &format!("{layer}.mlp"), index >= dense_layers)
    })
}
