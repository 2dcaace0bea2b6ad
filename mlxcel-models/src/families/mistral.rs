//! Mistral: Llama with a sliding window.
//!
//! Config fields, defaults and arithmetic follow transformers' `MistralConfig` and `MistralForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["mistral"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults =
    SizeDefaults { intermediate: 14_336, kv_heads: Some(8), context: 4096 * 32, ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    // `null` disables the window; it defaults to 4,096 only if the key is absent.
    let window = window(config, "sliding_window", Some(4096))?;
    let rope = sizes.rope(config).read()?;
    Variant::PLAIN.decoder(roles, &sizes, |_| core(sizes.scale(), window, Some(&rope)))
}
