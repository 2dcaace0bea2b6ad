//! Attention within texts that stand one behind the other, in both directions.

use mlxcel_stablehlo::{
    Attribute, Builder, Comparison, ElementType, Error, ErrorKind, Result, TensorType, Value,
};

use super::attention::{
    AttentionScores, MaskedOperands, heads_first, masked_attention, push_optional, split_optional,
};
use crate::composites;

/// Where the text of each token begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct TextRanges<'f> {
    /// `[N]` i32: the index of the first token of each token's text, and for padding its own.
    pub firsts: Value<'f>,
    /// `[N]` i32: the index after the last token of each token's text.
    pub ends: Value<'f>,
}

impl<'f> TextRanges<'f> {
    /// The ranges of texts whose tokens begin at `firsts: [N]` i32.
    ///
    /// # Errors
    /// The errors of the operations: `firsts` of another shape or type.
    pub fn new(b: &mut Builder<'f>, firsts: Value<'f>) -> Result<Self> {
        let same = same_text(b, firsts, None)?;
        let same = b.convert(same, ElementType::I32)?;
        let count = b.sum(same, &[1])?;
        Ok(Self { firsts, ends: b.add(firsts, count)? })
    }
}

/// The operands of [`text_attention`].
#[derive(Clone, Copy, Debug)]
pub struct TextAttentionOperands<'f> {
    /// `[N, H, d]` f32.
    pub query: Value<'f>,
    /// `[N, G, d]` f32.
    pub key: Value<'f>,
    /// `[N, G, d]` f32.
    pub value: Value<'f>,
    /// The texts of the tokens.
    pub texts: TextRanges<'f>,
    /// As [`MaskedOperands::biases`].
    pub biases: Option<Value<'f>>,
    /// `[H]`, floats: an additional score per query head without a value.
    pub sinks: Option<Value<'f>>,
}

/// Attention of each token to those of its text: `[N, H * d]` of type `out`, heads concatenated. With a
/// `window` only those that are nearer than it.
///
/// Makes the composite [`mlxcel.text_attention`](crate::composites::TEXT_ATTENTION), which is
/// [`masked_attention`] between all tokens: a kernel computes only what a text needs.
///
/// # Errors
/// Operands with invalid ranks, element types or sizes; `H` that is not a multiple of `G`.
pub fn text_attention<'f>(
    b: &mut Builder<'f>,
    operands: &TextAttentionOperands<'f>,
    scores: AttentionScores,
    window: Option<usize>,
    out: ElementType,
) -> Result<Value<'f>> {
    let TextAttentionOperands { query, key, value, texts, biases, sinks } = *operands;
    let TextRanges { firsts, ends } = texts;
    let &[tokens, ..] = &b.ty(query).shape[..] else {
        let detail = "query must be [N, H, d]";
        return Err(Error::new(ErrorKind::Shape, "text_attention", detail));
    };
    let mut attributes = scores.attributes();
    if let Some(window) = window {
        let window = i64::try_from(window).map_err(|_| {
            Error::new(ErrorKind::Structure, "text_attention", "the window is longer than any text")
        })?;
        attributes.push(("window".to_owned(), Attribute::Int(window)));
    }
    let mut operands = vec![query, key, value, firsts, ends];
    attributes.extend(push_optional(&mut operands, biases, sinks));
    let has_biases = biases.is_some();
    let results = b.composite(composites::TEXT_ATTENTION, &operands, &attributes, |b, args| {
        let [q, k, v] = [args[0], args[1], args[2]].map(|heads| heads_first(b, heads, 0, tokens));
        let mask = same_text(b, args[3], window)?;
        let (biases, sinks) = split_optional(&args[5..], has_biases);
        let operands = MaskedOperands { q: q?, k: k?, v: v?, mask, biases, sinks };
        Ok(vec![masked_attention(b, &operands, scores, out)?])
    })?;
    Ok(results[0])
}

/// `[tokens, tokens]`: which tokens each one attends to, those of its text that are nearer than `window`;
/// padding attends to itself.
fn same_text<'f>(b: &mut Builder<'f>, firsts: Value<'f>, window: Option<usize>) -> Result<Value<'f>> {
    let tokens = b.shape(firsts)[0];
    let grid = TensorType::new(ElementType::I32, [tokens, tokens]);
    let own = b.broadcast_in_dim(firsts, &grid.shape, &[0])?;
    let seen = b.broadcast_in_dim(firsts, &grid.shape, &[1])?;
    let visible = b.compare(own, seen, Comparison::Equal)?;
    let Some(window) = window.filter(|&window| window < tokens) else { return Ok(visible) };
    let (own, seen) = (b.iota(grid.clone(), 0)?, b.iota(grid.clone(), 1)?);
    let distance = b.subtract(seen, own)?;
    let distance = b.abs(distance)?;
    let window = b.splat(ElementType::I32, window as f64, &grid.shape)?;
    let near = b.compare(distance, window, Comparison::Less)?;
    b.and(visible, near)
}
