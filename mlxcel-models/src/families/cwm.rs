//! CWM: Llama with a window in three of four layers.
//!
//! Config fields, defaults and arithmetic follow transformers' `CwmConfig` and `CwmForCausalLM`, which reads
//! no `rope_theta` beside the rotary settings that it assumes.

use super::prelude::*;
use crate::rope::{Llama3, is_described};

pub(super) const FAMILY: Family = Family::new(&["cwm"], &[128_001, 128_008, 128_009], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_256,
    hidden: 6144,
    intermediate: 21_504,
    layers: 64,
    query_heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 131_072,
};

/// The rotary scaling where the settings have none.
const SCALING: Llama3 =
    Llama3 { factor: 16.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let settings = RopeSettings { theta: 1_000_000.0, ..sizes.rope(config) };
    let is_described = is_described(config, SCALING.original_context)?;
    let rope = if is_described { settings.read()? } else { settings.llama3(SCALING)? };
    let window = window(config, "sliding_window", Some(8192))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| !index.is_multiple_of(4))?;
    let variant = Variant { epsilon: 1e-5, mlp_biases: flag(config, "mlp_bias", false)?, ..Variant::PLAIN };
    variant.decoder(roles, &sizes, |index| core(sizes.scale(), windows[index], Some(&rope)))
}
