//! Selection of the positions with the highest scores, over a cache of keys.

use mlxcel_stablehlo::{
    Attribute, Builder, Comparison, DotDimensions, ElementType, Error, ErrorKind, Result, TensorType, Value,
};

use crate::composites::{SELECT_POSITIONS, rows_attribute};
use crate::layers::{by_group, count_true, refusal};

use super::slots::{self, Slots};

/// The operands of [`select_positions`]: a pass of `N` tokens, row after row.
#[derive(Clone, Copy, Debug)]
pub struct PositionSelectionOperands<'a, 'f> {
    /// `[N, H, d]` f32.
    pub query: Value<'f>,
    /// `[N, d]` f32: a key for all heads.
    pub key: Value<'f>,
    /// `[N, H]` f32: the weight of each head.
    pub weights: Value<'f>,
    /// `[rows]` i32: the position of each row's first token; not negative.
    pub positions: Value<'f>,
    /// One cache a row: `[layers, length, d]` of floats.
    pub caches: &'a [Value<'f>],
}

/// Attributes of [`select_positions`].
#[derive(Clone, Copy, Debug)]
pub struct PositionSelection<'a> {
    /// The number of tokens of each row; they add up to `N`.
    pub rows: &'a [usize],
    /// The layer of the caches to read and write.
    pub layer: usize,
    /// How many positions are selected, at least one.
    pub count: usize,
    /// Only the last of each so many positions can be selected; 1 if all can.
    pub rate: usize,
}

/// The results of [`select_positions`].
#[derive(Clone, Debug)]
pub struct Selected<'f> {
    /// `[tokens, length / rate]` i1 a row: which positions of its cache, of those that can be, are selected
    /// for each token, as [`latent_attention`](super::latent_attention) and
    /// [`compressed_attention`](super::compressed_attention) take them. None if no cache is longer than the
    /// number of selected positions.
    pub masks: Vec<Value<'f>>,
    /// The caches with the new keys.
    pub caches: Vec<Value<'f>>,
}

/// Selects, for each token, the `count` positions up to its own with the highest scores, or all if there are
/// fewer (the indexer of DeepSeek-V3.2). Each row's keys are written into its cache from its position on, and
/// the score of a position is `Σ weight · max(query · key, 0)` over the heads. Of equal scores the lower
/// position comes first; +0 and -0 are equal.
///
/// Makes the composite [`SELECT_POSITIONS`]. Its decomposition finds the lowest selected score by a search
/// over the bits of numbers, whose cost is proportional to the length of a cache, and the last position of
/// those that have it by another.
///
/// # Errors
/// Operands of other ranks or element types, or whose sizes do not agree; rows that do not add up to `N`, or
/// longer than their cache; a layer that caches lack; a count of zero.
pub fn select_positions<'f>(
    b: &mut Builder<'f>,
    operands: &PositionSelectionOperands<'_, 'f>,
    what: &PositionSelection<'_>,
) -> Result<Selected<'f>> {
    check(b, operands, what)?;
    let PositionSelectionOperands { query, key, weights, positions, caches } = *operands;
    let flat: Vec<_> = [query, key, weights, positions].iter().chain(caches).copied().collect();
    let is_selective = caches.iter().any(|&cache| b.shape(cache)[1] / what.rate.max(1) > what.count);
    let mut attributes = vec![
        ("layer".to_owned(), Attribute::Int(what.layer as i64)),
        rows_attribute(what.rows),
        ("count".to_owned(), Attribute::Int(i64::try_from(what.count).unwrap_or(i64::MAX))),
    ];
    if what.rate > 1 {
        attributes.push(("rate".to_owned(), Attribute::Int(i64::try_from(what.rate).unwrap_or(i64::MAX))));
    }
    if is_selective {
        attributes.push(("selected".to_owned(), Attribute::Bool(true)));
    }
    let name = SELECT_POSITIONS;
    let results = b.composite(name, &flat, &attributes, |b, args| decompose(b, args, what, is_selective))?;
    let (caches, masks) = results.split_at(caches.len().min(results.len()));
    Ok(Selected { masks: masks.to_vec(), caches: caches.to_vec() })
}

fn check<'f>(
    b: &Builder<'f>,
    operands: &PositionSelectionOperands<'_, 'f>,
    what: &PositionSelection<'_>,
) -> Result<()> {
    let PositionSelectionOperands { query, key, weights, positions, caches } = *operands;
    let named = [("query", query), ("key", key), ("weights", weights), ("positions", positions)];
    let error = |kind, detail: &str| Err(refusal(b, "select_positions", named, kind, detail));
    let ty = |value| b.ty(value);
    if [query, key, weights].iter().any(|&value| ty(value).element != ElementType::F32)
        || ty(positions).element != ElementType::I32
    {
        let detail = "query, key and weights must be of f32, positions of i32";
        return error(ErrorKind::Element, detail);
    }
    let &[tokens, heads, width] = &ty(query).shape[..] else {
        return error(ErrorKind::Shape, "query must be [N, H, d]");
    };
    if ty(key).shape != [tokens, width] || ty(weights).shape != [tokens, heads] || heads * width == 0 {
        return error(ErrorKind::Shape, "query must be [N, H, d], key [N, d] and weights [N, H]");
    }
    let rows = what.rows;
    if let Some(detail) = slots::row_defect(rows, tokens, ty(positions), caches.len()) {
        return error(ErrorKind::Shape, &detail);
    }
    if what.count == 0 || what.rate == 0 {
        return error(ErrorKind::Attribute, "at least one position is selected, of at least one");
    }
    for (&cache, &row) in caches.iter().zip(rows) {
        let cache = ty(cache);
        let fits = matches!(cache.shape[..], [layers, length, w]
            if layers > what.layer && length >= row && w == width && i32::try_from(length).is_ok());
        if !fits || !cache.element.is_float() {
            let detail = format!(
                "a cache of {cache} is not [layers, length, {width}] of floats with layer {} and room for {row}",
                what.layer
            );
            return error(ErrorKind::Shape, &detail);
        }
    }
    Ok(())
}

fn decompose<'d>(
    b: &mut Builder<'d>,
    args: &[Value<'d>],
    what: &PositionSelection<'_>,
    is_selective: bool,
) -> Result<Vec<Value<'d>>> {
    let [query, key, weights, positions, ref caches @ ..] = *args else {
        return Err(Error::new(ErrorKind::Structure, "select_positions", "operands are missing"));
    };
    let (heads, width) = (b.shape(query)[1], b.shape(query)[2]);
    let (mut results, mut masks) = (Vec::with_capacity(caches.len()), Vec::with_capacity(caches.len()));
    let mut start = 0;
    for (index, (&cache, &tokens)) in caches.iter().zip(what.rows).enumerate() {
        let end = start + tokens;
        let own = b.slice(key, &[start, 0], &[end, width])?;
        let own = b.reshape(own, &[1, tokens, width])?;
        let own = b.convert(own, b.ty(cache).element)?;
        let position = b.slice(positions, &[index], &[index + 1])?;
        let position = b.reshape(position, &[])?;
        let cache = slots::write(b, cache, own, what.layer, (1, position), Slots::Straight)?;
        results.push(cache);
        if is_selective {
            let query = b.slice(query, &[start, 0, 0], &[end, heads, width])?;
            let weights = b.slice(weights, &[start, 0], &[end, heads])?;
            let length = b.shape(cache)[1];
            let visible = match what.rate {
                1 => slots::visible(b, position, tokens, length, (None, false))?,
                rate => slots::closed(b, position, tokens, length / rate, rate)?,
            };
            masks.push(if length / what.rate > what.count {
                let keys = slots::closing(b, cache, what.layer, what.rate)?;
                let scores = scores(b, query, keys, weights)?;
                highest(b, scores, visible, what.count)?
            } else {
                visible
            });
        }
        start = end;
    }
    results.extend(masks);
    Ok(results)
}

/// `[tokens, length]`: the scores of all positions.
fn scores<'d>(
    b: &mut Builder<'d>,
    query: Value<'d>,
    keys: Value<'d>,
    weights: Value<'d>,
) -> Result<Value<'d>> {
    let keys = b.convert(keys, ElementType::F32)?;
    let by_key =
        DotDimensions { lhs_contracting: vec![2], rhs_contracting: vec![1], ..DotDimensions::default() };
    let products = b.dot_general(query, keys, by_key, ElementType::F32)?;
    let zero = b.splat(ElementType::F32, 0.0, &b.shape(products))?;
    let products = b.maximum(products, zero)?;
    b.dot_general(weights, products, by_group(1, 1), ElementType::F32)
}

/// `[tokens, length]` i1: of the `visible` positions those with the `count` highest scores; fewer than
/// `length`.
fn highest<'d>(
    b: &mut Builder<'d>,
    scores: Value<'d>,
    visible: Value<'d>,
    count: usize,
) -> Result<Value<'d>> {
    let (shape, integer) = (b.shape(scores), ElementType::I32);
    let (tokens, length) = (shape[0], shape[1]);
    let splat = |b: &mut Builder<'d>, value: i32| b.splat(integer, f64::from(value), &shape);
    // Integers in the order of the scores: the bits of those above zero, and for those below it the bits of
    // the magnitude, negative. What is not visible is below minus infinity.
    let bits = b.bitcast_convert(scores, integer)?;
    let (zero, sign, hidden) = (splat(b, 0)?, splat(b, i32::MIN)?, splat(b, -i32::MAX)?);
    let is_negative = b.compare(bits, zero, Comparison::Less)?;
    let mirrored = b.subtract(sign, bits)?;
    let order = b.select(is_negative, mirrored, bits)?;
    let order = b.select(visible, order, hidden)?;
    // The lowest selected score: as many as `count` are as high.
    let wanted = b.splat(integer, count as f64, &[tokens])?;
    let least = climb(b, tokens, (i32::MIN, 32), |b, bounds| {
        let number = count_where(b, order, bounds, Comparison::GreaterOrEqual)?;
        let wanted = b.expand(wanted, &b.shape(number), &[1])?;
        b.compare(number, wanted, Comparison::GreaterOrEqual)
    })?;
    let least = b.expand(least, &shape, &[1])?;
    let above = b.compare(order, least, Comparison::Greater)?;
    let ties = b.compare(order, least, Comparison::Equal)?;
    // The last selected position of those with this score: fewer than are missing come before it.
    let number = count_true(b, above, 1)?;
    let missing = b.subtract(wanted, number)?;
    let positions = b.iota(TensorType::new(integer, shape.clone()), 1)?;
    let none = splat(b, i32::MAX)?;
    let places = b.select(ties, positions, none)?;
    let last_bits = (usize::BITS - (length - 1).leading_zeros()) as usize;
    let last = climb(b, tokens, (0, last_bits), |b, bounds| {
        let number = count_where(b, places, bounds, Comparison::Less)?;
        let missing = b.expand(missing, &b.shape(number), &[1])?;
        b.compare(number, missing, Comparison::Less)
    })?;
    let last = b.expand(last, &shape, &[1])?;
    let first = b.compare(places, last, Comparison::LessOrEqual)?;
    let selected = b.or(above, first)?;
    b.and(selected, visible)
}

/// How many bits [`climb`] finds at a time: fewer and larger operations than one by one.
const BITS_AT_A_TIME: usize = 4;

/// `[tokens]` i32: for each token the largest of the `2^bits` numbers from `start` on for which a condition
/// holds. It holds for `start`, and for all numbers below one for which it holds. `holds` gets `[tokens,
/// numbers]` i32.
fn climb<'d>(
    b: &mut Builder<'d>,
    tokens: usize,
    (start, bits): (i32, usize),
    mut holds: impl FnMut(&mut Builder<'d>, Value<'d>) -> Result<Value<'d>>,
) -> Result<Value<'d>> {
    let integer = ElementType::I32;
    let mut found = b.splat(integer, f64::from(start), &[tokens])?;
    let mut low = bits;
    while low > 0 {
        let step = low.min(BITS_AT_A_TIME);
        low -= step;
        let shape = [tokens, (1 << step) - 1];
        let unit = f64::from(1 << low);
        let multiples = b.iota(TensorType::new(integer, shape), 1)?;
        let units = b.splat(integer, unit, &shape)?;
        let multiples = b.multiply(multiples, units)?;
        let multiples = b.add(multiples, units)?;
        let from = b.expand(found, &shape, &[1])?;
        let bounds = b.add(from, multiples)?;
        let truths = holds(b, bounds)?;
        let steps = count_true(b, truths, 1)?;
        let unit = b.splat(integer, unit, &[tokens])?;
        let more = b.multiply(steps, unit)?;
        found = b.add(found, more)?;
    }
    Ok(found)
}

/// `[tokens, numbers]` i32: how many `values` (`[tokens, length]`) of a token compare so with each of its
/// `bounds` (`[tokens, numbers]`).
fn count_where<'d>(
    b: &mut Builder<'d>,
    values: Value<'d>,
    bounds: Value<'d>,
    comparison: Comparison,
) -> Result<Value<'d>> {
    let shape = [b.shape(values)[0], b.shape(bounds)[1], b.shape(values)[1]];
    let values = b.expand(values, &shape, &[1])?;
    let bounds = b.expand(bounds, &shape, &[2])?;
    let truths = b.compare(values, bounds, comparison)?;
    count_true(b, truths, 2)
}
