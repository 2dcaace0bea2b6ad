//! Bamba: state spaces in most layers and attention in the others, with MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `BambaConfig` and `BambaForCausalLM`, but for
//! `time_step_limit`, which applies to single tokens too, as in Mamba 2.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use super::state_space::StateSpaceSettings;
use crate::decoder::{Activation, Decoder};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["bamba"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_000,
    hidden: 4096,
    intermediate: 14_336,
    layers: 32,
    query_heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 262_144,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    // transformers overwrites the key outside of the rotary settings.
    let partial = Partial::Inner { default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let mlp_biases = flag(config, "mlp_bias", false)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let state_space = StateSpaceSettings::of_hybrid(config, hidden, activation, epsilon, None)?;
    let attending = config.sizes("attn_layer_indices")?.unwrap_or_default();
    let variant = Variant {
        epsilon: 1e-5,
        norms: ["input_layernorm", "pre_ff_layernorm"],
        last_norm: "final_layernorm",
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        if !attending.contains(&index) {
            return Ok(state_space.describe(roles, &format!("{layer}.mamba"))?.into());
        }
        let core = core(sizes.scale(), None, Some(&rope));
        Ok(roles.attention(&format!("{layer}.self_attn"), &sizes, biases, core)?.into())
    };
    let shape = [hidden, sizes.intermediate];
    decoder_of(roles, &sizes, &variant, mixer, |_, layer| {
        Ok(roles.gated_mlp(&format!("{layer}.feed_forward"), shape, activation, mlp_biases)?.into())
    })
}
