//! Arcee (AFM-4.5B): Llama with an MLP without a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `ArceeConfig` and `ArceeForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag};
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["arcee"], &[128_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 32_000,
    hidden: 2560,
    intermediate: 18_432,
    layers: 32,
    query_heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 4096,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..Variant::PLAIN
    };
    let shape = [sizes.hidden, sizes.intermediate];
    let core = |_| core(sizes.scale(), None, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        Ok(roles.plain_mlp(&format!("{layer}.mlp"), shape, activation, variant.mlp_biases)?.into())
    })
}
