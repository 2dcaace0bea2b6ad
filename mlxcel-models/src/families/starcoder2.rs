//! StarCoder2: layer norms, plain MLPs, biases, a sliding window.
//!
//! Config fields, defaults and arithmetic follow transformers' `Starcoder2Config` and
//! `Starcoder2ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, expect_text, flag, window};
use crate::decoder::{Activation, Decoder, NormKind};

pub(super) const FAMILY: Family = Family::new(&["starcoder2"], &[50_256], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 49_152,
        hidden: 3072,
        intermediate: 12_288,
        layers: 30,
        query_heads: 24,
        kv_heads: Some(2),
        head_dim: None,
        context: 4096,
    };
    expect_text(config, "norm_type", "layer_norm")?;
    expect_text(config, "mlp_type", "default")?;
    let sizes = Sizes::read(config, &defaults)?;
    let biases = flag(config, "use_bias", true)?;
    let activation = activation(config, "hidden_act", Activation::GeluTanh)?;
    let window = window(config, "sliding_window", None)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "norm_epsilon",
        norm_kind: NormKind::Layer,
        attention_biases: AttentionBiases::all(biases),
        tied: true,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), window, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        let (module, shape) = (format!("{layer}.mlp"), [sizes.hidden, sizes.intermediate]);
        Ok(roles.plain_mlp_of(&module, ["c_fc", "c_proj"], shape, activation, biases)?.into())
    })
}
