//! StarCoder2: layer norms, plain MLPs, biases, a sliding window.
//!
//! Config fields, defaults and arithmetic follow transformers' `Starcoder2Config` and
//! `Starcoder2ForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["starcoder2"], &[50_256], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 49_152,
    hidden: 3072,
    intermediate: 12_288,
    layers: 30,
    query_heads: 24,
    kv_heads: Some(2),
    context: 4096,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_text(config, "norm_type", "layer_norm")?;
    expect_text(config, "mlp_type", "default")?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let biases = flag(config, "use_bias", true)?;
    let window = window(config, "sliding_window", None)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "norm_epsilon",
        norm_kind: NormKind::Layer,
        attention_biases: AttentionBiases::all(biases),
        mlp_form: MlpForm::Plain(["c_fc", "c_proj"]),
        mlp_biases: biases,
        activation: Activation::GeluTanh,
        tied: true,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), window, Some(&rope)))
}
