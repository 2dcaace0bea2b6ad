//! BitNet b1.58: Llama with norms before the output projections of attention and MLP, from weights that are
//! not packed.
//!
//! Config fields, defaults and arithmetic follow transformers' `BitNetConfig` and `BitNetForCausalLM`. Its
//! packed form rounds activations to 8 bits, which no engine does; it is refused by the name of its
//! `quant_method`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["bitnet"], &[128_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_256,
    hidden: 2560,
    intermediate: 6912,
    layers: 30,
    query_heads: 20,
    kv_heads: Some(5),
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let rope = RopeSettings { theta: 500_000.0, ..sizes.rope(config) }.read()?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { epsilon: 1e-5, attention_biases, ..Variant::PLAIN };
    let attention = |_, layer: &str| {
        let core = core(sizes.scale(), None, Some(&rope));
        let norm = format!("{layer}.self_attn.attn_sub_norm");
        let output_norm = Some(roles.rms_norm(&norm, sizes.query_width(), epsilon)?);
        Ok(Attention { output_norm, ..variant.attention(roles, &sizes, layer, core)? }.into())
    };
    variant.decoder_of(roles, &sizes, attention, |_, layer| {
        let name = |part: &str| format!("{layer}.mlp.{part}");
        let linear = |part, outputs, inputs| roles.linear(&name(part), outputs, inputs, false);
        let mlp = Mlp::Gated {
            gating: Gating::Activated(activation),
            gate: linear("gate_proj", intermediate, hidden)?,
            up: linear("up_proj", intermediate, hidden)?,
            norm: Some(roles.rms_norm(&name("ffn_sub_norm"), intermediate, epsilon)?),
            down: linear("down_proj", hidden, intermediate)?,
        };
        Ok(mlp.into())
    })
}
