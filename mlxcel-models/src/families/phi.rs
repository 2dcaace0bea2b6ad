//! Phi-1.5 and Phi-2: parallel attention and MLP after one layer norm, biases everywhere, and rotary
//! embedding of a part of each head.
//!
//! Config fields, defaults and arithmetic follow transformers' `PhiConfig` and `PhiForCausalLM`.

use super::persimmon::HEAD_NORMS;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["phi"], &[2], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 51_200, hidden: 2048, intermediate: 8192, layers: 24, ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let partial = Partial::Even { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        norms: Some(["input_layernorm"; 2]),
        parallel: true,
        last_norm: "final_layernorm",
        head_norms: flag(config, "qk_layernorm", false)?.then_some(HEAD_NORMS),
        mlp_form: MlpForm::Plain(["fc1", "fc2"]),
        mlp_biases: true,
        activation: Activation::GeluTanh,
        head_bias: true,
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let module = format!("{layer}.self_attn");
        let inputs = roles.attention_inputs(&module, hidden, &sizes, true)?;
        let output = roles.linear(&format!("{module}.dense"), hidden, sizes.query_width(), true)?;
        let attention = plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope)));
        Ok(variant.normed(roles, &sizes, &module, attention)?.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}
