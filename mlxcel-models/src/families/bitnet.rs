//! BitNet b1.58: Llama with norms before the output projections of attention and MLP, from weights that are
//! not packed.
//!
//! Config fields, defaults and arithmetic follow transformers' `BitNetConfig` and `BitNetForCausalLM`. Its
//! packed form rounds activations to 8 bits, which no engine does; it is refused by the name of its
//! `quant_method`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Attention, Decoder, Gating, Mlp};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family::new(&["bitnet"], &[128_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_256,
    hidden: 2560,
    intermediate: 6912,
    layers: 30,
    query_heads: 20,
    kv_heads: Some(5),
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let rope = RopeSettings { theta: 500_000.0, ..sizes.rope(config) }.read()?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let variant = Variant { epsilon: 1e-5, ..Variant::PLAIN };
    let attention = |_, layer: &str| {
        let module = format!("{layer}.self_attn");
        let core = core(sizes.scale(), None, Some(&rope));
        let norm = roles.rms_norm(&format!("{module}.attn_sub_norm"), sizes.query_width(), epsilon)?;
        let attention = roles.attention(&module, &sizes, biases, core)?;
        Ok(Attention { output_norm: Some(norm), ..attention }.into())
    };
    decoder_of(roles, &sizes, &variant, attention, |_, layer| {
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
