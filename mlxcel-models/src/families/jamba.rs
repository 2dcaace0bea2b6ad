//! Jamba: selective state spaces with norms of their steps, some layers of attention without positions, and
//! experts in some layers.
//!
//! Config fields, defaults and arithmetic follow transformers' `JambaConfig` and `JambaForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::convolution::taps;
use super::experts::ExpertSizes;
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{
    LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, LARGEST_WIDTH, SizeDefaults, Sizes, activation, flag, positive,
};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder, Mixer, SelectiveScan};

pub(super) const FAMILY: Family = Family::new(&["jamba"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 65_536,
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
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let attends = periodic(config, ["attn_layer_period", "attn_layer_offset"], [8, 4])?;
    let is_sparse = periodic(config, ["expert_layer_period", "expert_layer_offset"], [2, 1])?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts", "num_local_experts"], 1, [16, 2])?;
    let scan = ScanSettings::read(config, hidden, activation, epsilon)?;
    let variant = Variant {
        norms: ["input_layernorm", "pre_ff_layernorm"],
        last_norm: "final_layernorm",
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        if !attends(index) {
            return Ok(Mixer::SelectiveScan(scan.describe(roles, &format!("{layer}.mamba"))?).into());
        }
        let core = core(sizes.scale(), None, None);
        let biases = AttentionBiases::all(false);
        Ok(roles.attention(&format!("{layer}.self_attn"), &sizes, biases, core)?.into())
    };
    decoder_of(roles, &sizes, &variant, mixer, |index, layer| {
        let module = format!("{layer}.feed_forward");
        // One expert is an MLP, which all tokens pass.
        if is_sparse(index) && experts.count > 1 {
            return roles.softmax_experts(&module, "router", experts, false, activation, || Ok(None));
        }
        Ok(roles.gated_mlp(&module, [hidden, sizes.intermediate], activation, false)?.into())
    })
}

/// Reads which layers are one of a period: those whose index has this remainder.
fn periodic(
    config: Fields<'_>,
    [period_key, offset_key]: [&str; 2],
    [period, offset]: [usize; 2],
) -> Result<impl Fn(usize) -> bool> {
    let period = config.size(period_key, 1..=LARGEST_LAYER_COUNT)?.unwrap_or(period);
    let offset = config.size(offset_key, 0..=LARGEST_LAYER_COUNT)?.unwrap_or(offset);
    if offset >= period {
        return Err(config.wrong(offset_key, format!("{offset} should be below {period_key}, {period}")));
    }
    Ok(move |index: usize| index % period == offset)
}

/// The settings of the state spaces.
struct ScanSettings {
    hidden: usize,
    channels: usize,
    state_size: usize,
    rank: usize,
    taps: usize,
    convolution_bias: bool,
    biases: bool,
    activation: Activation,
    epsilon: f32,
}

impl ScanSettings {
    fn read(config: Fields<'_>, hidden: usize, activation: Activation, epsilon: f32) -> Result<Self> {
        const RANK: &str = "mamba_dt_rank";
        let is_auto = config.get(RANK).is_none_or(|rank| rank.as_str() == Some("auto"));
        let rank = if is_auto { None } else { config.size(RANK, 1..=LARGEST_WIDTH)? };
        Ok(Self {
            hidden,
            channels: hidden * config.size("mamba_expand", 1..=64)?.unwrap_or(2),
            state_size: config.size("mamba_d_state", 1..=LARGEST_HEAD_DIM)?.unwrap_or(16),
            rank: rank.unwrap_or(hidden.div_ceil(16)),
            taps: taps(config, "mamba_d_conv", 4)?,
            convolution_bias: flag(config, "mamba_conv_bias", true)?,
            biases: flag(config, "mamba_proj_bias", false)?,
            activation,
            epsilon,
        })
    }

    /// The mixer of module `name`, whose first projection has the rows of x and of the gate, and the second
    /// those of the steps, B and C.
    fn describe(&self, roles: &Roles<'_>, name: &str) -> Result<SelectiveScan> {
        let &Self { hidden, channels, state_size, rank, taps, convolution_bias, biases, .. } = self;
        let module = |part: &str| format!("{name}.{part}");
        let joint = roles.fused(&module("in_proj"), 2 * channels, hidden, biases)?;
        let selection = roles.fused(&module("x_proj"), rank + 2 * state_size, channels, false)?;
        let norm = |part: &str, width: usize| roles.rms_norm(&module(part), width, self.epsilon);
        Ok(SelectiveScan {
            channels,
            state_size,
            input: joint.rows(0, channels),
            gate: joint.rows(channels, channels),
            convolution: roles.convolution(
                &module("conv1d"),
                [channels, taps],
                convolution_bias,
                Some(self.activation),
            )?,
            rank: selection.rows(0, rank),
            state_input: selection.rows(rank, state_size),
            state_output: selection.rows(rank + state_size, state_size),
            norms: Some([
                norm("dt_layernorm", rank)?,
                norm("b_layernorm", state_size)?,
                norm("c_layernorm", state_size)?,
            ]),
            step: roles.linear(&module("dt_proj"), channels, rank, true)?,
            decay: roles.add(
                roles.dense(&module("A_log"), &[channels, state_size])?.reshaped([channels * state_size]),
            ),
            skip: roles.tensor(&module("D"), &[channels])?,
            output: roles.linear(&module("out_proj"), hidden, channels, biases)?,
        })
    }
}
