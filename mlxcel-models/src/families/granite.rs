//! Granite 3: Llama with multipliers of embeddings, scores, residuals and logits.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteConfig` and `GraniteForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { conversion: Conversion::sensitive(SENSITIVE), ..Family::new(&["granite"], &[2], describe) };

/// What suffers most from fewer bits.
pub(super) const SENSITIVE: &[&str] = &["self_attn.o_proj", "mlp.down_proj", "lm_head"];

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &SizeDefaults::LLAMA)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant { mlp_biases: flag(config, "mlp_bias", false)?, ..scaled(config)? };
    let scale = number(config, ATTENTION_SCALE, 1.0)?;
    variant.decoder(roles, &sizes, |_| core(scale, None, Some(&rope)))
}

/// The field of the factor of scores.
pub(super) const ATTENTION_SCALE: &str = "attention_multiplier";

/// Llama with the factors of embeddings, residuals and logits that all generations of Granite have.
pub(super) fn scaled(config: Fields<'_>) -> Result<Variant> {
    Ok(Variant {
        attention_biases: AttentionBiases::read(config)?,
        embedding_scale: number(config, "embedding_multiplier", 1.0)?,
        residual_scale: number(config, "residual_multiplier", 1.0)?,
        logit_scale: 1.0 / positive(config, "logits_scaling", 1.0)?,
        ..Variant::PLAIN
    })
}
