//! What a pass is given, beside the states of its sequences.

use mlxcel_models::Rope;
use mlxcel_stablehlo::{Error, ErrorKind, Result, Value};

use crate::layers::TextRanges;

/// The values of one program that operations read, beside activations.
pub(crate) struct PassValues<'a, 'f> {
    /// How many tokens each row has room for.
    pub(crate) rows: &'a [usize],
    /// `[tokens]` i32: token ids.
    pub(crate) tokens: Value<'f>,
    /// `[tokens]` i32: the types of the tokens, if the decoder has types.
    pub(crate) types: Option<Value<'f>>,
    /// `[tokens, hidden]` f32: the states beside the tokens, if the decoder is a draft head.
    pub(crate) input_states: Option<Value<'f>>,
    /// `[rows]` i32: the position of each row's first token.
    pub(crate) positions: Value<'f>,
    /// `[rows]` i32: the index, among the tokens of all rows, of each row's last token before the padding.
    pub(crate) last: Value<'f>,
    /// The texts of the tokens, if the decoder reads in both directions.
    pub(crate) texts: Option<TextRanges<'f>>,
    /// The indices of tokens whose logits are wanted; all if `None`.
    pub(crate) wanted: Option<Value<'f>>,
    /// The rotary embeddings of the network with their tables: cosines and sines, `[tokens, rotary_dim /
    /// 2]`.
    pub(crate) rotary: Vec<(&'a Rope, (Value<'f>, Value<'f>))>,
}

/// An input that not every program has.
pub(super) fn given<'f>(input: Option<Value<'f>>, operation: &'static str) -> Result<Value<'f>> {
    input.ok_or_else(|| Error::new(ErrorKind::Name, operation, "the program has no input for it"))
}
