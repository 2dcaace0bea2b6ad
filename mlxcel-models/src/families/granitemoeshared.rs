//! Granite-MoE with a shared expert.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteMoeSharedConfig` and
//! `GraniteMoeSharedForCausalLM`.

use super::granitemoe::{self, decoder};
use super::granitemoehybrid::shared_mlp;
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: granitemoe::FAMILY.conversion,
    ..Family::new(&["granitemoeshared"], &[2], describe)
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let width = config.size("shared_intermediate_size", 0..=LARGEST_WIDTH)?.unwrap_or(0);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    decoder(roles, |layer, hidden| {
        if width == 0 {
            return Ok(None);
        }
        Ok(Some(shared_mlp(roles, layer, [hidden, width], activation)?.into()))
    })
}
