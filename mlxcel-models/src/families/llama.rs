//! Llama, and everything published as `model_type: llama` (SmolLM, TinyLlama, Yi, …).
//!
//! Config fields, defaults and arithmetic follow transformers' `LlamaConfig` and `LlamaForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["llama"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &SizeDefaults::LLAMA)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        attention_biases: AttentionBiases::read(config)?,
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
