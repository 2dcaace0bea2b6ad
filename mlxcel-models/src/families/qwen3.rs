//! Qwen3: Llama with norms of queries and keys.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3Config` and `Qwen3ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{HEAD_NORMS, Variant, decoder};
use super::qwen2;
use super::qwen2::windows;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, flag};
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family::new(&["qwen3"], &[], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults { head_dim: Some(128), ..qwen2::DEFAULTS };
    let sizes = Sizes::read(config, &defaults)?;
    let windows = windows(config, sizes.layers)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        head_norms: HEAD_NORMS,
        ..Variant::PLAIN
    };
    decoder(roles, &sizes, &variant, |index| core(sizes.scale(), windows[index], Some(&rope)))
}
