//! Selective state spaces of the first Mamba: tensor names.

use mlxcel_core::Result;

use super::blocks::plain_norm;
use super::roles::Roles;
use super::settings::LARGEST_WIDTH;
use crate::config::Fields;
use crate::decoder::{Activation, Mixer, Operation, SelectiveScan};

/// The settings of a selective state space.
pub(super) struct ScanSettings {
    /// The width of the stream.
    pub(super) hidden: usize,
    pub(super) channels: usize,
    pub(super) state_size: usize,
    pub(super) rank: usize,
    pub(super) taps: usize,
    pub(super) convolution_bias: bool,
    /// Whether the projections from and to the stream have biases.
    pub(super) biases: bool,
    pub(super) activation: Activation,
    pub(super) norms: ScanNorms,
}

/// The norms of what steps are made of, of B and of C, and their epsilon.
#[derive(Clone, Copy)]
pub(super) enum ScanNorms {
    None,
    /// Without factors.
    Bare(f32),
    /// With factors.
    Weighted(f32),
}

/// Reads how many numbers the steps of all channels are made of: the field `key`, or by default a sixteenth
/// of the width of the stream.
pub(super) fn rank(config: Fields<'_>, key: &str, hidden: usize) -> Result<usize> {
    let is_auto = config.get(key).is_none_or(|rank| rank.as_str() == Some("auto"));
    let rank = if is_auto { None } else { config.size(key, 1..=LARGEST_WIDTH)? };
    Ok(rank.unwrap_or(hidden.div_ceil(16)))
}

impl ScanSettings {
    /// The mixer of module `name`, whose first projection has the rows of x and of the gate, and the second
    /// those of the steps, B and C.
    pub(super) fn describe(&self, roles: &Roles<'_>, name: &str) -> Result<SelectiveScan> {
        let &Self { hidden, channels, state_size, rank, taps, convolution_bias, biases, .. } = self;
        let module = |part: &str| format!("{name}.{part}");
        let joint = roles.fused(&module("in_proj"), 2 * channels, hidden, biases)?;
        let selection = roles.fused(&module("x_proj"), rank + 2 * state_size, channels, false)?;
        let norm = |part: &str, width, epsilon| roles.rms_norm(&module(part), width, epsilon);
        let norms = match self.norms {
            ScanNorms::None => None,
            ScanNorms::Bare(epsilon) => {
                Some([rank, state_size, state_size].map(|width| plain_norm(width, epsilon)))
            }
            ScanNorms::Weighted(epsilon) => Some([
                norm("dt_layernorm", rank, epsilon)?,
                norm("b_layernorm", state_size, epsilon)?,
                norm("c_layernorm", state_size, epsilon)?,
            ]),
        };
        let activation = Some(self.activation);
        Ok(SelectiveScan {
            channels,
            state_size,
            input: joint.rows(0, channels),
            gate: joint.rows(channels, channels),
            convolution: roles.convolution(
                &module("conv1d"),
                [channels, taps],
                convolution_bias,
                activation,
            )?,
            rank: selection.rows(0, rank),
            state_input: selection.rows(rank, state_size),
            state_output: selection.rows(rank + state_size, state_size),
            norms,
            step: roles.linear(&module("dt_proj"), channels, rank, true)?,
            decay: roles.add(
                roles.dense(&module("A_log"), &[channels, state_size])?.reshaped([channels * state_size]),
            ),
            skip: roles.tensor(&module("D"), &[channels])?,
            output: roles.linear(&module("out_proj"), hidden, channels, biases)?,
        })
    }
}

impl From<SelectiveScan> for Operation {
    fn from(mixer: SelectiveScan) -> Self {
        Self::Mixer(Mixer::SelectiveScan(mixer))
    }
}
