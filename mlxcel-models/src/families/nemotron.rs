//! Nemotron: layer norms stored minus one, squared ReLU without a gate, rotary embedding of half of each
//! head.
//!
//! Config fields, defaults and arithmetic follow transformers' `NemotronConfig` and `NemotronForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["nemotron"], &[3], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 256_000,
    hidden: 6144,
    intermediate: 24_576,
    query_heads: 48,
    context: 4096,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "norm_eps",
        norm_kind: NormKind::Layer,
        norm_offset: 1.0,
        attention_biases: AttentionBiases::read(config)?,
        mlp_form: MlpForm::Plain(UNGATED),
        mlp_biases: flag(config, "mlp_bias", false)?,
        activation: Activation::ReluSquared,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
