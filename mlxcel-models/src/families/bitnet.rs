//! BitNet b1.58: Llama with norms before the output projections of attention and MLP, from weights that are
//! not packed.
//!
//! Config fields, defaults and arithmetic follow transformers' `BitNetConfig` and `BitNetForCausalLM`. Its
//! packed form rounds activations to 8 bits, which no engine does; it is refused by the name of its
//! `quant_method`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::outline::Outline;
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
    let tied = flag(config, "tie_word_embeddings", false)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), None, Some(&rope));
        let attention = Attention {
            output_norm: Some(roles.rms_norm(
                &name("self_attn.attn_sub_norm"),
                sizes.query_width(),
                epsilon,
            )?),
            ..roles.attention(&name("self_attn"), &sizes, biases, core)?
        };
        let linear =
            |part, outputs, inputs| roles.linear(&name(&format!("mlp.{part}")), outputs, inputs, false);
        let mlp = Mlp::Gated {
            gating: Gating::Activated(activation),
            gate: linear("gate_proj", intermediate, hidden)?,
            up: linear("up_proj", intermediate, hidden)?,
            norm: Some(roles.rms_norm(&name("mlp.ffn_sub_norm"), intermediate, epsilon)?),
            down: linear("down_proj", hidden, intermediate)?,
        };
        Ok(sequential([
            pre_norm(norm(&name("input_layernorm"))?, attention),
            pre_norm(norm(&name("post_attention_layernorm"))?, mlp),
        ]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
