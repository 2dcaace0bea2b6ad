//! The hidden states that draft heads read of a model, and of themselves.

use super::{Block, Decoder, Linear, Norm, Operation};

/// The hidden states of all tokens of a pass that are results beside the logits.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputStates {
    /// Those after the last norm.
    Normed,
    /// The residual stream in front of the last norm, which an EAGLE-3 head reads of itself.
    BeforeNorm,
    /// What an EAGLE-3 head reads of its model: a projection of the residual stream at several depths.
    Fused {
        /// The depths, ascending: 0 is the stream before the first layer, and so on.
        depths: Vec<usize>,
        /// The norms of the states, one for each depth or none.
        state_norms: Vec<Norm>,
        /// The norm of all states beside each other, if there is one.
        joined_norm: Option<Norm>,
        /// As many times `hidden_size` as there are depths, to the width of the head.
        projection: Linear,
    },
}

impl Decoder {
    /// Whether output states are computed from what the last mixer returns, which then has to be that of all
    /// tokens.
    pub(crate) fn returns_last_states(&self) -> bool {
        let is_mixer = |block: &Block| matches!(block.operation, Operation::Mixer(_));
        let last = || self.layers.iter().rposition(|layer| layer.blocks.iter().any(is_mixer));
        match &self.output_states {
            None => false,
            Some(OutputStates::Normed | OutputStates::BeforeNorm) => true,
            Some(OutputStates::Fused { depths, .. }) => depths.last().copied() > last(),
        }
    }

    /// The elements of an output state; `None` if the decoder does not return any.
    pub fn output_state_width(&self) -> Option<usize> {
        self.output_states.as_ref().map(|states| match states {
            OutputStates::Normed | OutputStates::BeforeNorm => self.hidden_size,
            OutputStates::Fused { projection, .. } => projection.outputs,
        })
    }
}
