//! Qwen3.5: Qwen3-Next's layers with separate projections and MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3_5TextConfig` and `Qwen3_5ForCausalLM`.
//! The positions of text are the same in all sections of the rotary embedding. The multi-token prediction
//! layer, `mtp`, is the draft head.

use super::prelude::*;
use super::qwen2;
use super::qwen3_next;

pub(super) const FAMILY: Family = Family::new(&["qwen3_5_text"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 248_320,
    intermediate: 12_288,
    query_heads: 16,
    kv_heads: Some(4),
    head_dim: Some(256),
    ..qwen2::DEFAULTS
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let sizes = Sizes::read(roles.config, &DEFAULTS)?;
    decoder(roles, &sizes, |module, activation| {
        Ok(roles.gated_mlp(module, [sizes.hidden, sizes.intermediate], activation, false)?.into())
    })
}

/// The decoder of a checkpoint with Qwen3.5's structure and tensor names; `second` makes the operation of a
/// module.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    second: impl Fn(&str, Activation) -> Result<Operation>,
) -> Result<Decoder> {
    // mlx-lm stores convolutions the other way round.
    let is_converted = |layer: &str| {
        let convolution = roles.shape(&format!("{layer}.linear_attn.conv1d.weight"));
        convolution.is_some_and(|shape| shape.last() == Some(&1))
    };
    qwen3_next::decoder(roles, sizes, is_converted, |_, module, activation| second(module, activation))
}
