//! Ministral 8B: Mistral with windows by layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `MinistralConfig` and `MinistralForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::core;
use super::llama::{Variant, decoder};
use super::mistral::DEFAULTS;
use super::roles::Roles;
use super::settings::{Sizes, sliding_windows, window};
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family::new(&["ministral"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |_| window.is_some())?;
    let rope = sizes.rope(config).read()?;
    decoder(roles, &sizes, &Variant::PLAIN, |index| core(sizes.scale(), windows[index], Some(&rope)))
}
