//! Granite 3: Llama with multipliers of embeddings, scores, residuals and logits.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteConfig` and `GraniteForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core};
use super::llama::{DEFAULTS, Variant, decoder};
use super::roles::Roles;
use super::settings::{Sizes, flag, number, positive};
use super::{Conversion, Family};
use crate::config::Fields;
use crate::decoder::Decoder;

pub(super) const FAMILY: Family =
    Family { conversion: Conversion::sensitive(SENSITIVE), ..Family::new(&["granite"], &[2], describe) };

/// What suffers most from fewer bits.
pub(super) const SENSITIVE: &[&str] = &["self_attn.o_proj", "mlp.down_proj", "lm_head"];

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..scaled(config)?
    };
    let scale = number(config, ATTENTION_SCALE, 1.0)?;
    decoder(roles, &sizes, &variant, |_| core(scale, None, Some(&rope)))
}

/// The field of the factor of scores.
pub(super) const ATTENTION_SCALE: &str = "attention_multiplier";

/// Llama with the factors of embeddings, residuals and logits that all generations of Granite have.
pub(super) fn scaled(config: Fields<'_>) -> Result<Variant> {
    Ok(Variant {
        embedding_scale: number(config, "embedding_multiplier", 1.0)?,
        residual_scale: number(config, "residual_multiplier", 1.0)?,
        logit_scale: 1.0 / positive(config, "logits_scaling", 1.0)?,
        ..Variant::PLAIN
    })
}
