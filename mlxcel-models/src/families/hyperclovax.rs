//! HyperCLOVA X: Granite with norms after attention and MLPs, and logits that are multiplied instead of
//! divided.
//!
//! Config fields, defaults and arithmetic follow transformers' `HyperCLOVAXConfig` and
//! `HyperCLOVAXForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::granite::{ATTENTION_SCALE, scaled};
use super::llama::{DEFAULTS, Variant, decoder};
use super::roles::Roles;
use super::settings::{Sizes, flag, number};
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family::new(&["hyperclovax"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        norms_after: flag(config, "use_post_norm", true)?.then_some(["post_norm1", "post_norm2"]),
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        mlp_biases: flag(config, "mlp_bias", false)?,
        logit_scale: number(config, "logits_scaling", 1.0)?,
        wrapper_scales: true,
        ..scaled(config)?
    };
    let scale = number(config, ATTENTION_SCALE, sizes.scale().into())?;
    decoder(roles, &sizes, &variant, |_| core(scale, None, Some(&rope)))
}
