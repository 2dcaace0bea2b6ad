//! Mistral: Llama with a sliding window.
//!
//! Config fields, defaults and arithmetic follow transformers' `MistralConfig` and `MistralForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::core;
use super::llama::{Variant, decoder};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, window};
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family::new(&["mistral"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 32_000,
    hidden: 4096,
    intermediate: 14_336,
    layers: 32,
    query_heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 4096 * 32,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    // `null` disables the window; it defaults to 4,096 only if the key is absent.
    let window = window(config, "sliding_window", Some(4096))?;
    let rope = sizes.rope(config).read()?;
    decoder(roles, &sizes, &Variant::PLAIN, |_| core(sizes.scale(), window, Some(&rope)))
}
