//! Mamba: selective state spaces instead of attention, and no MLPs; and Falcon Mamba, which normalizes steps,
//! B and C.
//!
//! Config fields, defaults and arithmetic follow transformers' `MambaConfig` and `MambaForCausalLM`, and
//! `FalconMambaConfig` and `FalconMambaForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{pre_norm, sequential};
use super::convolution::taps;
use super::mamba2::CONTEXT;
use super::outline::Outline;
use super::roles::Roles;
use super::selective_scan::{ScanNorms, ScanSettings, rank};
use super::settings::{
    LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, LARGEST_VOCABULARY, LARGEST_WIDTH, activation, flag, positive,
};
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["mamba"], &[0], |roles| describe(roles, ScanNorms::None));

pub(super) const FALCON: Family = Family::new(&["falcon_mamba"], &[0], |roles| {
    let epsilon = positive(roles.config, "mixer_rms_eps", 1e-6)?;
    describe(roles, ScanNorms::Bare(epsilon))
});

fn describe(roles: &Roles<'_>, norms: ScanNorms) -> Result<Decoder> {
    let config = roles.config;
    let size = |key: &str, default, largest| -> Result<usize> {
        Ok(config.size(key, 1..=largest)?.unwrap_or(default))
    };
    let hidden = size("hidden_size", 768, LARGEST_WIDTH)?;
    let expanded = hidden * size("expand", 2, 64)?;
    let settings = ScanSettings {
        hidden,
        // The class keeps what the file says, and else what follows from the factor.
        channels: size("intermediate_size", expanded, LARGEST_WIDTH)?,
        state_size: size("state_size", 16, LARGEST_HEAD_DIM)?,
        rank: rank(config, "time_step_rank", hidden)?,
        taps: taps(config, "conv_kernel", 4)?,
        convolution_bias: flag(config, "use_conv_bias", true)?,
        biases: flag(config, "use_bias", false)?,
        activation: activation(config, "hidden_act", Activation::Silu)?,
        norms,
    };
    let epsilon = positive(config, "layer_norm_epsilon", 1e-5)?;
    let vocabulary = size("vocab_size", 50_280, LARGEST_VOCABULARY)?;
    let layers = size("num_hidden_layers", 32, LARGEST_LAYER_COUNT)?;
    let tied = flag(config, "tie_word_embeddings", true)?;

    let base = roles.base("backbone.", "embeddings");
    let outline = Outline {
        embedding: format!("{base}embeddings"),
        norm: format!("{base}norm_f"),
        ..Outline::without_heads([vocabulary, hidden, layers, CONTEXT], &base, tied)
    };
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let norm = norm(&format!("{base}layers.{index}.norm"))?;
        let mixer = settings.describe(roles, &format!("{base}layers.{index}.mixer"))?;
        Ok(sequential([pre_norm(norm, mixer)]))
    };
    roles.decoder(outline, norm, layer)
}
