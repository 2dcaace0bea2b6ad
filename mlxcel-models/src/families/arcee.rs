//! Arcee (AFM-4.5B): Llama with an MLP without a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `ArceeConfig` and `ArceeForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["arcee"], &[128_001], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { hidden: 2560, intermediate: 18_432, context: 4096, ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::read(config)?,
        mlp_form: MlpForm::Plain(UNGATED),
        mlp_biases: flag(config, "mlp_bias", false)?,
        activation: Activation::ReluSquared,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
