//! Scaled dot-product attention.

use mlxcel_models::{LARGEST_DISTANCE, alibi_slopes};
use mlxcel_stablehlo::{
    Attribute, Builder, DotDimensions, ElementType, Error, ErrorKind, Literal, Result, TensorType, Value,
};

use super::refusal;
use crate::composites;

/// The operands of [`masked_attention`].
#[derive(Clone, Copy, Debug)]
pub struct MaskedOperands<'f> {
    /// `[H, T, d]`.
    pub q: Value<'f>,
    /// `[G, S, d]`.
    pub k: Value<'f>,
    /// `[G, S, e]`.
    pub v: Value<'f>,
    /// `[T, S]`, boolean.
    pub mask: Value<'f>,
    /// `[2 · LARGEST_DISTANCE + 1, H]` f32: what is added to scores for the index of the key less that of the
    /// query, from [`-LARGEST_DISTANCE`](mlxcel_models::LARGEST_DISTANCE) on. Those beyond have the last.
    pub biases: Option<Value<'f>>,
    /// `[H]`, floats: an additional score per query head without a value.
    pub sinks: Option<Value<'f>>,
}

/// How query-key products become scores.
#[derive(Clone, Copy, Debug)]
pub struct AttentionScores {
    /// The factor of the products.
    pub scale: f32,
    /// The soft cap: scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Whether the distance of the indices of query and key times the
    /// [slope](mlxcel_models::alibi_slopes) of the head is subtracted.
    pub alibi: bool,
}

impl AttentionScores {
    /// These settings as attributes of a composite.
    pub fn attributes(&self) -> Vec<(String, Attribute)> {
        let mut attributes = vec![("scale".to_owned(), Attribute::Float(self.scale))];
        if let Some(cap) = self.soft_cap {
            attributes.push(("soft_cap".to_owned(), Attribute::Float(cap)));
        }
        if self.alibi {
            attributes.push(("alibi".to_owned(), Attribute::Bool(true)));
        }
        attributes
    }
}

/// Attention of `T` queries over `S` keys and values: `q: [H, T, d]`, `k: [G, S, d]`, `v: [G, S, e]`, and a
/// boolean `mask: [T, S]` (true: attend). The result is `out: [T, H * e]`, heads concatenated, as the output
/// projection reads it.
///
/// `H` query heads share `G` key-value heads (grouped-query attention, Ainslie et al. 2023): query head `h`
/// reads key-value head `h / (H / G)`. Scores are multiplied by `scale`, usually one over the square root of
/// `d`.
///
/// Makes the composite [`mlxcel.attention`](crate::composites::ATTENTION) with the attribute `scale`. Its
/// decomposition computes in f32 for any type of keys and values, because rounding queries and probabilities
/// to half precision costs more accuracy than rounding keys and values. A query that is masked everywhere
/// gets the mean of all values. Masked values are multiplied by zero, so they must be finite.
///
/// # Errors
/// Operands with invalid ranks, element types or sizes; `H` that is not a multiple of `G`.
pub fn attention<'f>(
    b: &mut Builder<'f>,
    q: Value<'f>,
    k: Value<'f>,
    v: Value<'f>,
    mask: Value<'f>,
    scale: f32,
    out: ElementType,
) -> Result<Value<'f>> {
    let operands = MaskedOperands { q, k, v, mask, biases: None, sinks: None };
    masked_attention(b, &operands, AttentionScores { scale, soft_cap: None, alibi: false }, out)
}

/// [`attention`] with optional soft cap, biases by distance and sinks.
///
/// # Errors
/// The errors of [`attention`].
pub fn masked_attention<'f>(
    b: &mut Builder<'f>,
    operands: &MaskedOperands<'f>,
    scores: AttentionScores,
    out: ElementType,
) -> Result<Value<'f>> {
    let MaskedOperands { q, k, v, mask, biases, sinks } = *operands;
    let sizes = attention_sizes(b, [q, k, v, mask], out)?;
    let mut attributes = scores.attributes();
    let mut operands = vec![q, k, v, mask];
    attributes.extend(push_optional(&mut operands, biases, sinks));
    let has_biases = biases.is_some();
    let results = b.composite(composites::ATTENTION, &operands, &attributes, |b, args| {
        let (biases, sinks) = split_optional(&args[4..], has_biases);
        Ok(vec![attend(b, [args[0], args[1], args[2], args[3]], (biases, sinks), &sizes, scores, out)?])
    })?;
    Ok(results[0])
}

/// Adds those of the optional operands that are there, and returns their marks.
pub(super) fn push_optional<'f>(
    operands: &mut Vec<Value<'f>>,
    biases: Option<Value<'f>>,
    sinks: Option<Value<'f>>,
) -> impl Iterator<Item = (String, Attribute)> {
    operands.extend(biases.into_iter().chain(sinks));
    let marks = [("biases", biases.is_some()), ("sinks", sinks.is_some())];
    let there = marks.into_iter().filter(|(_, is_there)| *is_there);
    there.map(|(name, _)| (name.to_owned(), Attribute::Bool(true)))
}

/// The biases and sinks of what [`push_optional`] added.
pub(super) fn split_optional<'f>(
    operands: &[Value<'f>],
    has_biases: bool,
) -> (Option<Value<'f>>, Option<Value<'f>>) {
    let mut operands = operands.iter().copied();
    let biases = if has_biases { operands.next() } else { None };
    (biases, operands.next())
}

fn attention_sizes<'f>(b: &Builder<'f>, operands: [Value<'f>; 4], out: ElementType) -> Result<Sizes> {
    let named = ["q", "k", "v", "mask"].into_iter().zip(operands);
    let error = |kind, detail: &str| Err(refusal(b, "attention", named.clone(), kind, detail));
    let [q, k, v, mask] = operands.map(|operand| b.ty(operand));
    if [q, k, v].iter().any(|ty| !ty.element.is_float()) || mask.element != ElementType::I1 || !out.is_float()
    {
        let detail = format!("q, k, v and the result ({out}) must be of floats, mask of truth values (i1)");
        return error(ErrorKind::Element, &detail);
    }
    let (&[heads, queries, width], &[groups, keys, k_width], &[v_groups, v_keys, v_width]) =
        (&q.shape[..], &k.shape[..], &v.shape[..])
    else {
        return error(ErrorKind::Shape, "q must be [H, T, d], k [G, S, d] and v [G, S, e]");
    };
    if k_width != width || v_groups != groups || v_keys != keys || mask.shape != [queries, keys] {
        let detail = "the sizes of q: [H, T, d], k: [G, S, d], v: [G, S, e] and mask: [T, S] must agree";
        return error(ErrorKind::Shape, detail);
    }
    if groups == 0 || heads % groups != 0 {
        return error(
            ErrorKind::Shape,
            &format!("{heads} query heads cannot share {groups} key-value heads"),
        );
    }
    Ok(Sizes { heads, queries, width, groups, keys, v_width })
}

struct Sizes {
    heads: usize,
    queries: usize,
    width: usize,
    groups: usize,
    keys: usize,
    v_width: usize,
}

fn attend<'d>(
    b: &mut Builder<'d>,
    [q, k, v, mask]: [Value<'d>; 4],
    (biases, sinks): (Option<Value<'d>>, Option<Value<'d>>),
    sizes: &Sizes,
    scores: AttentionScores,
    out: ElementType,
) -> Result<Value<'d>> {
    let &Sizes { heads, queries, width, groups, keys, v_width } = sizes;
    let shared = heads / groups;
    let (q, k, v) =
        (b.convert(q, ElementType::F32)?, b.convert(k, ElementType::F32)?, b.convert(v, ElementType::F32)?);
    let q = b.reshape(q, &[groups, shared, queries, width])?;
    let AttentionScores { scale, soft_cap, alibi } = scores;
    let scores = b.dot_general(q, k, by_group(3, 2), ElementType::F32)?;
    let scores_type = TensorType::new(ElementType::F32, [groups, shared, queries, keys]);
    let scale = b.splat(ElementType::F32, f64::from(scale), &scores_type.shape)?;
    let mut scores = b.multiply(scores, scale)?;
    if let Some(cap) = soft_cap {
        let cap = b.splat(ElementType::F32, f64::from(cap), &scores_type.shape)?;
        scores = b.divide(scores, cap)?;
        scores = b.tanh(scores)?;
        scores = b.multiply(scores, cap)?;
    }
    if alibi {
        let bias = alibi_bias(b, [groups, shared, queries, keys])?;
        scores = b.subtract(scores, bias)?;
    }
    if let Some(biases) = biases {
        let bias = distance_bias(b, biases, [groups, shared, queries, keys])?;
        scores = b.add(scores, bias)?;
    }

    // A finite stand-in for minus infinity: a row that is masked everywhere stays free of infinity minus
    // infinity.
    let hidden = b.splat(ElementType::F32, f64::from(f32::MIN), &scores_type.shape)?;
    let mask = b.expand(mask, &scores_type.shape, &[0, 1])?;
    let scores = b.select(mask, scores, hidden)?;
    let probabilities = match sinks {
        Some(sinks) => {
            let sinks = b.convert(sinks, ElementType::F32)?;
            let sinks = b.reshape(sinks, &[groups, shared])?;
            let sinks = b.expand(sinks, &scores_type.shape[..3], &[2])?;
            softmax_beside(b, scores, sinks)?
        }
        None => b.softmax(scores, 3)?,
    };

    let mixed = b.dot_general(probabilities, v, by_group(3, 1), ElementType::F32)?;
    let mixed = b.transpose(mixed, &[2, 0, 1, 3])?;
    let mixed = b.reshape(mixed, &[queries, heads * v_width])?;
    b.convert(mixed, out)
}

/// [`MaskedOperands::biases`] of each query and key, `[groups, shared, queries, keys]` f32.
fn distance_bias<'d>(b: &mut Builder<'d>, biases: Value<'d>, shape: [usize; 4]) -> Result<Value<'d>> {
    let [_, _, queries, keys] = shape;
    let grid = TensorType::new(ElementType::I32, [queries, keys]);
    let (own, seen) = (b.iota(grid.clone(), 0)?, b.iota(grid.clone(), 1)?);
    let offset = b.subtract(seen, own)?;
    let first = b.splat(ElementType::I32, LARGEST_DISTANCE as f64, &grid.shape)?;
    // Rows beyond the table are its first and its last.
    let rows = b.add(offset, first)?;
    let bias = b.take(biases, rows)?;
    let bias = b.transpose(bias, &[2, 0, 1])?;
    b.reshape(bias, &shape)
}

/// What ALiBi subtracts from scores, `[groups, shared, queries, keys]` f32.
fn alibi_bias<'d>(b: &mut Builder<'d>, shape: [usize; 4]) -> Result<Value<'d>> {
    let [groups, shared, queries, keys] = shape;
    let grid = TensorType::new(ElementType::F32, [queries, keys]);
    let (own, seen) = (b.iota(grid.clone(), 0)?, b.iota(grid, 1)?);
    let distance = b.subtract(seen, own)?;
    let distance = b.abs(distance)?;
    let distance = b.expand(distance, &shape, &[0, 1])?;
    let slopes = Literal::new([groups, shared], &alibi_slopes(groups * shared));
    let slopes = slopes
        .ok_or_else(|| Error::new(ErrorKind::Shape, "attention", "there is not a slope for each head"))?;
    let slopes = b.constant(slopes)?;
    let slopes = b.expand(slopes, &shape, &[2, 3])?;
    b.multiply(distance, slopes)
}

/// The softmax of `scores` along their last dimension and one more score each, `beside`, whose own
/// probability is dropped.
fn softmax_beside<'d>(b: &mut Builder<'d>, scores: Value<'d>, beside: Value<'d>) -> Result<Value<'d>> {
    let shape = b.shape(scores);
    let last = shape.len() - 1;
    let largest = b.max(scores, &[last])?;
    let largest = b.maximum(largest, beside)?;
    let shift = b.expand(largest, &shape, &[last])?;
    let powers = b.subtract(scores, shift)?;
    let powers = b.exponential(powers)?;
    let sum = b.sum(powers, &[last])?;
    let power = b.subtract(beside, largest)?;
    let power = b.exponential(power)?;
    let sum = b.add(sum, power)?;
    let sum = b.expand(sum, &shape, &[last])?;
    b.divide(powers, sum)
}

/// Tokens `start..end` of `x` (`[N, heads, w]`) as `[heads, tokens, w]`.
pub(crate) fn heads_first<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    start: usize,
    end: usize,
) -> Result<Value<'f>> {
    let shape = b.shape(x);
    let part = b.slice(x, &[start, 0, 0], &[end, shape[1], shape[2]])?;
    b.transpose(part, &[1, 0, 2])
}

/// Pairs dimension 0 of both operands as the batch, and contracts the given ones.
pub(crate) fn by_group(lhs: usize, rhs: usize) -> DotDimensions {
    DotDimensions {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![lhs],
        rhs_contracting: vec![rhs],
    }
}
