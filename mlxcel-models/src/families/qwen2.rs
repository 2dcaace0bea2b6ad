//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen2Config` and `Qwen2ForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["qwen2"], &[], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_936,
    intermediate: 22_016,
    kv_heads: Some(32),
    context: 32_768,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "use_mrope", false)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let windows = windows(config, sizes.layers)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant { attention_biases: AttentionBiases::inputs(true), ..Variant::PLAIN };
    variant.decoder(roles, &sizes, |index| core(sizes.scale(), windows[index], Some(&rope)))
}

/// Of each layer how many positions it sees: if `use_sliding_window`, `sliding_window` from layer
/// `max_window_layers` on.
pub(super) fn windows(config: Fields<'_>, layers: usize) -> Result<Vec<Option<usize>>> {
    let sliding = flag(config, "use_sliding_window", false)?;
    let window = if sliding { window(config, "sliding_window", Some(4096))? } else { None };
    let first = config.size("max_window_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(28);
    sliding_windows(config, layers, window, |index| window.is_some() && index >= first)
}
