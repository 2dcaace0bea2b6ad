//! Bamba: state spaces in most layers and attention in the others, with MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `BambaConfig` and `BambaForCausalLM`, but for
//! `time_step_limit`, which applies to single tokens too, as in Mamba 2.

use super::mistral;
use super::prelude::*;
use super::state_space::StateSpaceSettings;

pub(super) const FAMILY: Family = Family::new(&["bamba"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 128_000, context: 262_144, ..mistral::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    // transformers overwrites the key outside of the rotary settings.
    let partial = Partial::Inner { default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let state_space = StateSpaceSettings::of_hybrid(config, sizes.hidden, activation, epsilon, None)?;
    let attending = config.sizes("attn_layer_indices")?.unwrap_or_default();
    let variant = Variant {
        epsilon: 1e-5,
        norms: Some(["input_layernorm", "pre_ff_layernorm"]),
        last_norm: "final_layernorm",
        attention_biases: AttentionBiases::read(config)?,
        mlp: "feed_forward",
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        if !attending.contains(&index) {
            return Ok(state_space.describe(roles, &format!("{layer}.mamba"))?.into());
        }
        let core = core(sizes.scale(), None, Some(&rope));
        Ok(variant.attention(roles, &sizes, layer, core)?.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, mixer, |_, layer| mlp(layer))
}
