//! Mamba: selective state spaces instead of attention, and no MLPs; and Falcon Mamba, which normalizes steps,
//! B and C.
//!
//! Config fields, defaults and arithmetic follow transformers' `MambaConfig` and `MambaForCausalLM`, and
//! `FalconMambaConfig` and `FalconMambaForCausalLM`.

use super::convolution::taps;
use super::mamba2::decoder;
use super::prelude::*;
use super::selective_scan::{ScanNorms, ScanSettings, rank};

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
    let sizes = [vocabulary, hidden, layers];
    decoder(roles, sizes, epsilon, tied, |name| Ok(settings.describe(roles, name)?.into()))
}
