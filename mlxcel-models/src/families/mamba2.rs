//! Mamba2: state spaces instead of attention, and no MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Mamba2Config` and `Mamba2ForCausalLM`. There,
//! prefill applies `time_step_limit` and decoding does not; here both do, as in mlx-lm, so that text does not
//! depend on prefill chunking.

use super::convolution::taps;
use super::prelude::*;
use super::state_space::{StateSpaceSettings, StateSpaceVariant, dt_limits};

pub(super) const FAMILY: Family = Family::new(&["mamba2"], &[2], describe);

/// The state does not grow with positions and the settings have no bound, so this one is only there to be
/// finite.
const CONTEXT: usize = 1 << 20;

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
    let hidden = config.size("hidden_size", 1..=LARGEST_WIDTH)?.unwrap_or(4096);
    let settings = settings(config, hidden)?;
    let vocabulary = config.size("vocab_size", 1..=LARGEST_VOCABULARY)?.unwrap_or(32_768);
    let layers = config.size("num_hidden_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(64);
    let tied = flag(config, "tie_word_embeddings", false)?;
    let sizes = [vocabulary, hidden, layers];
    decoder(roles, sizes, settings.epsilon, tied, |name| Ok(settings.describe(roles, name)?.into()))
}

/// The decoder of a checkpoint whose layers are mixers alone, which `mixer` makes from the names of their
/// modules; with the size of the vocabulary, the hidden size, and so many layers.
pub(super) fn decoder(
    roles: &Roles<'_>,
    [vocabulary, hidden, layers]: [usize; 3],
    epsilon: f32,
    tied: bool,
    mixer: impl Fn(&str) -> Result<Operation>,
) -> Result<Decoder> {
    let base = roles.base("backbone.", "embeddings");
    let outline = Outline {
        embedding: format!("{base}embeddings"),
        norm: Some(format!("{base}norm_f")),
        ..Outline::without_heads([vocabulary, hidden, layers, CONTEXT], &base, tied)
    };
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let norm = norm(&format!("{base}layers.{index}.norm"))?;
        Ok(sequential([pre_norm(norm, mixer(&format!("{base}layers.{index}.mixer"))?)]))
    };
    roles.decoder(outline, norm, layer)
}
