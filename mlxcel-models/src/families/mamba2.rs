//! Mamba2: state spaces instead of attention, and no MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Mamba2Config` and `Mamba2ForCausalLM`. There,
//! prefill applies `time_step_limit` and decoding does not; here both do, as in mlx-lm, so that text does not
//! depend on prefill chunking.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{pre_norm, sequential};
use super::convolution::taps;
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{
    LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, LARGEST_VOCABULARY, LARGEST_WIDTH, activation,
    flag, positive,
};
use super::state_space::{StateSpaceSettings, StateSpaceVariant, dt_limits};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["mamba2"], &[2], describe);

/// The state does not grow with positions and the settings have no bound, so this one is only there to be
/// finite.
pub(super) const CONTEXT: usize = 1 << 20;

fn settings(config: Fields<'_>, hidden: usize) -> Result<StateSpaceSettings> {
    let heads = config.size("num_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(128);
    let head_dim = config.size("head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(64);
    let expand = config.size("expand", 1..=64)?.unwrap_or(2);
    let groups = config.size("n_groups", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(8);
    // transformers has no setting `rms_norm` any more: the norm after the gate is always applied.
    let settings = StateSpaceSettings {
        hidden,
        heads,
        head_dim,
        groups,
        state_size: config.size("state_size", 1..=LARGEST_HEAD_DIM)?.unwrap_or(128),
        taps: taps(config, "conv_kernel", 4)?,
        bias: flag(config, "use_bias", false)?,
        convolution_bias: flag(config, "use_conv_bias", true)?,
        activation: activation(config, "hidden_act", Activation::Silu)?,
        dt_limits: dt_limits(config)?,
        epsilon: positive(config, "layer_norm_epsilon", 1e-5)?,
        variant: StateSpaceVariant::PLAIN,
    };
    settings.check(config, hidden * expand, ["num_heads", "n_groups"])?;
    Ok(settings)
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let base = roles.base("backbone.", "embeddings");
    let hidden = config.size("hidden_size", 1..=LARGEST_WIDTH)?.unwrap_or(4096);
    let settings = settings(config, hidden)?;
    let vocabulary = config.size("vocab_size", 1..=LARGEST_VOCABULARY)?.unwrap_or(32_768);
    let layers = config.size("num_hidden_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(64);
    let tied = flag(config, "tie_word_embeddings", false)?;
    let outline = Outline {
        embedding: format!("{base}embeddings"),
        norm: format!("{base}norm_f"),
        ..Outline::without_heads([vocabulary, hidden, layers, CONTEXT], &base, tied)
    };
    let norm = |name: &str| roles.rms_norm(name, hidden, settings.epsilon);
    let layer = |index: usize| {
        let norm = norm(&format!("{base}layers.{index}.norm"))?;
        let mixer = settings.describe(roles, &format!("{base}layers.{index}.mixer"))?;
        Ok(sequential([pre_norm(norm, mixer)]))
    };
    roles.decoder(outline, norm, layer)
}
