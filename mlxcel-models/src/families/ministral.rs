//! Ministral 8B: Mistral with windows by layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `MinistralConfig` and `MinistralForCausalLM`.

use super::mistral::DEFAULTS;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["ministral"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |_| window.is_some())?;
    let rope = sizes.rope(config).read()?;
    Variant::PLAIN.decoder(roles, &sizes, |index| core(sizes.scale(), windows[index], Some(&rope)))
}
