//! What the sessions of a model share.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use mlxcel_core::{Capabilities, ModelInfo, TokenId};
use mlxcel_models::{Rope, RopeEpochs};

use crate::adapters::AdapterRoom;
use crate::plan::Chunks;
use crate::shape::Lengths;
use crate::state::StateLayout;

/// Where what programs compute of a row is equal to the last bit however many tokens and rows are computed
/// with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum IndependentRows {
    /// Nowhere, or it is not known.
    #[default]
    No,
    /// Among rows of several tokens: so a short part of a prompt may go through whichever program is ready.
    Several,
    /// Among all rows: sessions claim [`Capabilities::bitwise_batch_invariance`].
    All,
}

/// What the sessions of a model share.
pub(crate) struct Shared<E> {
    pub(crate) executor: E,
    pub(crate) info: ModelInfo,
    pub(crate) capabilities: Capabilities,
    pub(crate) layouts: Vec<StateLayout>,
    /// The token of each logit, if programs compute those of a part of the vocabulary.
    pub(crate) head_tokens: Option<Arc<[TokenId]>>,
    pub(crate) ropes: Vec<Rope>,
    /// Lengths at which a sequence that crosses them is recomputed.
    pub(crate) epochs: RopeEpochs,
    pub(crate) lengths: Lengths,
    /// The length beyond which no state grows, where there is one.
    pub(crate) bound: Option<usize>,
    pub(crate) chunks: Chunks,
    pub(crate) independent_rows: IndependentRows,
    /// The adapters, if there is room for any.
    pub(crate) adapters: Option<AdapterRoom>,
    /// How many passes would have cost less by programs for shorter rows.
    pub(crate) padded_passes: AtomicU32,
}
