//! Jais 2: Llama with layer norms, biases, and a squared ReLU without a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `Jais2Config` and `Jais2ForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["jais2"], &[150_024], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 150_272,
    hidden: 3328,
    intermediate: 26_624,
    query_heads: 26,
    context: 8192,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", true)?),
        mlp_form: MlpForm::Plain(UNGATED),
        mlp_biases: flag(config, "mlp_bias", true)?,
        activation: Activation::ReluSquared,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
