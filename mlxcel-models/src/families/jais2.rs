//! Jais 2: Llama with layer norms, biases, and a squared ReLU without a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `Jais2Config` and `Jais2ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag};
use crate::decoder::{Activation, Decoder, NormKind};

pub(super) const FAMILY: Family = Family::new(&["jais2"], &[150_024], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 150_272,
    hidden: 3328,
    intermediate: 26_624,
    layers: 32,
    query_heads: 26,
    kv_heads: None,
    head_dim: None,
    context: 8192,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let biases = flag(config, "mlp_bias", true)?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", true)?),
        ..Variant::PLAIN
    };
    let shape = [sizes.hidden, sizes.intermediate];
    let core = |_| core(sizes.scale(), None, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        Ok(roles.plain_mlp(&format!("{layer}.mlp"), shape, activation, biases)?.into())
    })
}
