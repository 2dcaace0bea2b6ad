//! Qwen3: Llama with norms of queries and keys.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3Config` and `Qwen3ForCausalLM`.

use super::prelude::*;
use super::qwen2::{self, windows};

pub(super) const FAMILY: Family = Family::new(&["qwen3"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { head_dim: Some(128), ..qwen2::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let windows = windows(config, sizes.layers)?;
    let rope = sizes.rope(config).read()?;
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { attention_biases, head_norms: HEAD_NORMS, ..Variant::PLAIN };
    variant.decoder(roles, &sizes, |index| core(sizes.scale(), windows[index], Some(&rope)))
}
