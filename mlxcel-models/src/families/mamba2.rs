//! Mamba2: state spaces instead of attention, and no MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Mamba2Config` and `Mamba2ForCausalLM`. There, prefill
//! applies `time_step_limit` and decoding does not; here both do, as in mlx-lm, so that text does not depend on prefill
//! chunking.

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
use crate::config::Fields;
use crate::decoder::{Activation, Decoder, Mixer, Norm, NormKind, Operation, StateSpace};

pub(super) const FAMILY: Family = Family { model_types: &["mamba2"], stop_tokens: &[2], describe };

/// The state does not grow with positions and the settings have no bound, so this one is only there to be finite.
const CONTEXT: usize = 1 << 20;

struct Settings {
    /// The width of the stream.
    hidden: usize,
    heads: usize,
    head_dim: usize,
    groups: usize,
    state_size: usize,
    taps: usize,
    bias: bool,
    convolution_bias: bool,
    activation: Activation,
    dt_limits: (f32, f32),
    epsilon: f32,
}

impl Settings {
    fn read(config: Fields<'_>, hidden: usize) -> Result<Self> {
        let heads = config.size("num_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(128);
        let head_dim = config.size("head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(64);
        let expand = config.size("expand", 1..=64)?.unwrap_or(2);
        if heads * head_dim != hidden * expand {
            let message = format!("{heads} heads of {head_dim} are not {expand} times hidden_size, {hidden}");
            return Err(config.wrong("num_heads", message));
        }
        let groups = config.size("n_groups", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(8);
        if heads % groups != 0 {
            return Err(
                config.wrong("n_groups", format!("{groups} groups cannot share {heads} heads evenly"))
            );
        }
        // transformers has no setting `rms_norm` any more: the norm after the gate is always applied.
        let (least, most) = config.bounds("time_step_limit")?.unwrap_or((0.0, f64::INFINITY));
        Ok(Self {
            hidden,
            heads,
            head_dim,
            groups,
            state_size: config.size("state_size", 1..=LARGEST_HEAD_DIM)?.unwrap_or(128),
            taps: taps(config, "conv_kernel", 4)?,
            bias: flag(config, "use_bias", false)?,
            convolution_bias: flag(config, "use_conv_bias", true)?,
            activation: activation(config, "hidden_act", Activation::Silu)?,
            dt_limits: (least as f32, most as f32),
            epsilon: positive(config, "layer_norm_epsilon", 1e-5)?,
        })
    }

    /// The width of what the heads give together.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The channels of `x`, `B` and `C`.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let base = roles.base("backbone.", "embeddings");
    let hidden = config.size("hidden_size", 1..=LARGEST_WIDTH)?.unwrap_or(4096);
    let settings = Settings::read(config, hidden)?;
    let outline = Outline {
        vocabulary: config.size("vocab_size", 1..=LARGEST_VOCABULARY)?.unwrap_or(32_768),
        hidden,
        layers: config.size("num_hidden_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(64),
        context: CONTEXT,
        embedding: format!("{base}embeddings"),
        embedding_scale: 1.0,
        positions: None,
        norm: format!("{base}norm_f"),
        head: "lm_head".to_owned(),
        tied: flag(config, "tie_word_embeddings", false)?,
        logit_scale: 1.0,
        logit_soft_cap: None,
    };
    let norm = |name: &str| roles.rms_norm(name, hidden, settings.epsilon);
    let layer = |index: usize| {
        let norm = norm(&format!("{base}layers.{index}.norm"))?;
        let mixer = mixer(roles, &format!("{base}layers.{index}.mixer"), &settings)?;
        Ok(sequential([pre_norm(norm, Operation::Mixer(Mixer::StateSpace(mixer)))]))
    };
    roles.decoder(outline, norm, layer)
}

fn mixer(roles: &Roles<'_>, name: &str, settings: &Settings) -> Result<StateSpace> {
    let &Settings { hidden, heads, head_dim, groups, state_size, taps, bias, dt_limits, epsilon, .. } =
        settings;
    let (inner, channels) = (settings.inner(), settings.channels());
    // The rows of the one projection: z, then what goes through the convolution, then dt.
    let rows = inner + channels + heads;
    let projection = format!("{name}.in_proj");
    let weight = roles.matrix(&projection, rows, hidden)?;
    let biases = if bias { Some(roles.dense(&format!("{projection}.bias"), &[rows])?) } else { None };
    let part = |start: usize, outputs: usize| {
        roles.projection(
            weight.clone().rows(start, outputs),
            biases.clone().map(|biases| biases.rows(start, outputs)),
        )
    };
    let gate = part(0, inner);
    let input = part(inner, channels);
    let dt = part(inner + channels, heads);
    let has_bias = settings.convolution_bias;
    let convolution = roles.convolution(
        &format!("{name}.conv1d"),
        [channels, taps],
        has_bias,
        Some(settings.activation),
    )?;
    let width = inner / groups;
    let factors = roles.dense(&format!("{name}.norm.weight"), &[inner])?;
    let factors = if groups == 1 { factors } else { factors.reshaped([groups, width]) };
    let norm = Norm {
        kind: NormKind::Rms,
        weight: Some(roles.add(factors)),
        bias: None,
        epsilon,
        offset: 0.0,
        width,
    };
    Ok(StateSpace {
        heads,
        head_dim,
        groups,
        state_size,
        gate,
        input,
        dt,
        convolution,
        dt_bias: roles.tensor(&format!("{name}.dt_bias"), &[heads])?,
        dt_limits,
        decay: roles.tensor(&format!("{name}.A_log"), &[heads])?,
        skip: roles.tensor(&format!("{name}.D"), &[heads])?,
        norm: Some(norm),
        output: roles.linear(&format!("{name}.out_proj"), hidden, inner, bias)?,
    })
}
