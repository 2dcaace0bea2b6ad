//! Layers with dense weights as functions of a [`Builder`].
//!
//! Each function takes the builder, the operands and the settings, checks them, and returns the results.
//! Those that make a composite name it; the others write plain operations. [`packed`](crate::packed) has the
//! same functions for packed weights, [`cached`](crate::cached) attention that reads and writes caches.

mod activation;
mod attention;
mod balance;
mod compression;
mod embedding;
mod experts;
mod generalized_delta_rule;
mod linear;
mod norm;
mod recurrent;
mod rope;
mod routing;
mod text_attention;

use mlxcel_stablehlo::{Builder, Error, ErrorKind, Result, Value};

pub use activation::activate;
pub use attention::{AttentionScores, MaskedOperands, attention, masked_attention};
pub(crate) use attention::{by_group, heads_first};
pub use balance::balance;
pub use compression::{Compression, compress};
pub use embedding::embedding;
pub(crate) use experts::{ExpertOperands, chosen};
pub use experts::{block_linear, expert_linear};
pub use generalized_delta_rule::generalized_delta_rule;
pub use linear::linear;
pub use norm::rms_norm;
pub use recurrent::{
    RecurrentRows, causal_convolution, gated_delta_rule, previous_tokens, selective_state_space,
};
pub use rope::{deinterleave, interleave, rope};
pub(crate) use routing::count_true;
pub use routing::{ExpertGroups, expert_block, group_by_expert, top_k};
pub use text_attention::{TextAttentionOperands, TextRanges, text_attention};

/// An error of the operation `op` with the names and types of its operands.
pub(crate) fn refusal<'f, N: Into<String>>(
    b: &Builder<'f>,
    op: &str,
    named: impl IntoIterator<Item = (N, Value<'f>)>,
    kind: ErrorKind,
    detail: &str,
) -> Error {
    let operands = named.into_iter().map(|(name, value)| (name.into(), b.ty(value).clone()));
    Error::new(kind, op, detail).with_operands(operands.collect())
}

/// The results of rows one behind the other along their first dimension; that of a single row as it is.
pub(crate) fn join_rows<'f>(b: &mut Builder<'f>, rows: &[Value<'f>]) -> Result<Value<'f>> {
    if let [only] = rows { Ok(*only) } else { b.concatenate(rows, 0) }
}
