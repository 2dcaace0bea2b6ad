//! Attention of new tokens over a KV cache, which they are written into first.

use mlxcel_stablehlo::{Attribute, Builder, ElementType, Error, ErrorKind, Result, Value};

use crate::composites::{CACHED_ATTENTION, rows_attribute};
use crate::layers::{
    AttentionScores, MaskedOperands, heads_first, join_rows, masked_attention, refusal, rope,
};

use super::row;
use super::slots::{self, Slots};

/// The operands of [`cached_attention`]: a pass of `N` tokens, row after row.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttentionOperands<'a, 'f> {
    /// `[N, H, d]` f32, before rotary embedding.
    pub query: Value<'f>,
    /// `[N, G, d]` f32, before rotary embedding.
    pub key: Value<'f>,
    /// `[N, G, d]` f32.
    pub value: Value<'f>,
    /// `[N, r/2]` f32 each: the cosines and the sines of each token's angles, as [`rope`] takes them.
    /// Without them queries and keys are not rotated.
    pub rotary: Option<(Value<'f>, Value<'f>)>,
    /// `[rows]` i32: the position of each row's first token; not negative.
    pub positions: Value<'f>,
    /// `[H]` of floats: one more score of each query head, which takes part in the softmax and has no value.
    pub sinks: Option<Value<'f>>,
    /// One cache a row: `[layers, 2, G, length, w]`, keys then values. Of floats, `w` is `d`; of i8, it is
    /// `d + 4`: a position's values as signed bytes, then the f32 that they are multiples of.
    ///
    /// Under a window a cache is a ring, see [`CachedAttention::window`].
    pub caches: &'a [Value<'f>],
}

/// Attributes of [`cached_attention`].
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention<'a> {
    /// The number of tokens of each row; they add up to `N`.
    pub rows: &'a [usize],
    /// The layer of the caches to read and write.
    pub layer: usize,
    /// The scale of scores, usually one over the square root of `d`.
    pub scale: f32,
    /// Soft cap of scores, after `scale`: `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// The sliding window: how many positions a token attends to, including its own; defaults to all.
    ///
    /// With a window, position `p` stands in slot `p mod length` of a cache of `length >= window - 1 +
    /// tokens of the row`. A row's tokens then overwrite positions that are out of the window of the
    /// row's first token and so of all that follow; this holds for padding behind the row's own tokens
    /// as well, whose positions are fed again. A shorter cache must have a slot for every position:
    /// there position `p` stands in slot `p`, as without a window.
    pub window: Option<usize>,
    /// Whether a token attends to the positions of its own chunk instead: those from the last multiple of
    /// the window on. Caches are the same.
    pub chunked: bool,
    /// The element type of the result.
    pub out: ElementType,
}

impl CachedAttention<'_> {
    fn scores(&self) -> AttentionScores {
        AttentionScores { scale: self.scale, soft_cap: self.soft_cap, alibi: false }
    }
}

/// The attention layer of a decoder between its projections: queries and keys are rotated by position, each
/// row's keys and values are written into its cache from its position on, and each of its tokens attends to
/// what the cache holds up to the token's own position. Gives `[N, H * d]`, head after head, as
/// [`CachedAttention::out`], and the caches.
///
/// Makes the composite [`CACHED_ATTENTION`]. Its decomposition is made of
/// [`rope`], a conversion to the cache's type, an update of each cache and
/// [`attention`](crate::layers::attention) over all of it under a mask. Where a row does not fit behind its
/// position in a cache that is not a ring, it is written at the cache's end. A kernel in its place reads no
/// position that none of the row's tokens sees.
///
/// Values are kept in 8 bits as round(x / s) for s the largest magnitude of the position's `d` values over
/// 127.
///
/// # Errors
/// Operands of other ranks or element types, or whose sizes do not agree; rows that do not add up to `N`, or
/// longer than their cache; a layer that caches lack; `H` that is not a multiple of `G`; a soft cap or a
/// window that is not positive.
pub fn cached_attention<'f>(
    b: &mut Builder<'f>,
    operands: &CachedAttentionOperands<'_, 'f>,
    what: &CachedAttention<'_>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    check(b, operands, what)?;
    let mut attributes =
        vec![("layer".to_owned(), Attribute::Int(what.layer as i64)), rows_attribute(what.rows)];
    attributes.extend(what.scores().attributes());
    if let Some(window) = what.window {
        attributes.push(("window".to_owned(), Attribute::Int(window as i64)));
        if what.chunked {
            attributes.push(("chunked".to_owned(), Attribute::Bool(true)));
        }
    }
    let CachedAttentionOperands { query, key, value, rotary, positions, sinks, caches } = *operands;
    let mut flat = vec![query, key, value];
    match rotary {
        Some((cos, sin)) => flat.extend([cos, sin]),
        None => attributes.push(("rotary".to_owned(), Attribute::Bool(false))),
    }
    flat.push(positions);
    if let Some(sinks) = sinks {
        attributes.push(("sinks".to_owned(), Attribute::Bool(true)));
        flat.push(sinks);
    }
    flat.extend(caches);
    let (rotary, sinks) = (rotary.is_some(), sinks.is_some());
    let name = CACHED_ATTENTION;
    let results = b.composite(name, &flat, &attributes, |b, args| {
        let missing = || Error::new(ErrorKind::Structure, "cached_attention", "operands are missing");
        decompose(b, &parse(args, rotary, sinks).ok_or_else(missing)?, what)
    })?;
    match results.split_first() {
        Some((&mixed, caches)) => Ok((mixed, caches.to_vec())),
        None => Err(Error::new(ErrorKind::Structure, "cached_attention", "the result type is missing")),
    }
}

fn check<'f>(
    b: &Builder<'f>,
    operands: &CachedAttentionOperands<'_, 'f>,
    what: &CachedAttention<'_>,
) -> Result<()> {
    let CachedAttentionOperands { query, key, value, rotary, positions, sinks, caches } = *operands;
    let mut floats = vec![("query", query), ("key", key), ("value", value)];
    floats.extend(rotary.into_iter().flat_map(|(cos, sin)| [("cos", cos), ("sin", sin)]));
    let error = |kind, detail: &str| {
        let named = floats.iter().copied().chain([("positions", positions)]);
        let named = named.chain(sinks.map(|sinks| ("sinks", sinks)));
        Err(refusal(b, "cached_attention", named, kind, detail))
    };
    let ty = |value| b.ty(value);
    if floats.iter().any(|&(_, value)| ty(value).element != ElementType::F32)
        || ty(positions).element != ElementType::I32
        || sinks.is_some_and(|sinks| !ty(sinks).element.is_float())
        || !what.out.is_float()
    {
        let detail =
            "query, key, value, cos and sin must be of f32, positions of i32, sinks and the result of floats";
        return error(ErrorKind::Element, detail);
    }
    if what.soft_cap.is_some_and(|cap| !(cap > 0.0 && cap.is_finite())) || what.window == Some(0) {
        return error(ErrorKind::Attribute, "a soft cap and a window must be positive");
    }
    let (&[tokens, heads, width], &[_, groups, _]) = (&ty(query).shape[..], &ty(key).shape[..]) else {
        return error(ErrorKind::Shape, "query must be [N, H, d], key and value [N, G, d]");
    };
    let same = ty(key).shape == [tokens, groups, width] && ty(value).shape == ty(key).shape;
    if !same || groups == 0 || heads % groups != 0 {
        let detail = "query must be [N, H, d], key and value [N, G, d], H a multiple of G";
        return error(ErrorKind::Shape, detail);
    }
    if sinks.is_some_and(|sinks| ty(sinks).shape != [heads]) {
        return error(ErrorKind::Shape, "sinks must be [H]");
    }
    let rows = what.rows;
    if let Some(detail) = slots::row_defect(rows, tokens, ty(positions), caches.len()) {
        return error(ErrorKind::Shape, &detail);
    }
    for (&cache, &row) in caches.iter().zip(rows) {
        let cache = ty(cache);
        let element = cache.element;
        let Some(row_width) = row::width(element, width) else {
            return error(ErrorKind::Element, &format!("a cache must be of floats or i8, not {element}"));
        };
        let fits = matches!(cache.shape[..], [layers, 2, g, length, w]
            if layers > what.layer && g == groups && length >= row && w == row_width);
        if !fits {
            let detail = format!(
                "a cache of {cache} is not [layers, 2, {groups}, length, {row_width}] with layer {} and room for {row}",
                what.layer
            );
            return error(ErrorKind::Shape, &detail);
        }
    }
    Ok(())
}

/// The operands in the order in which the composite has them.
fn parse<'a, 'd>(
    args: &'a [Value<'d>],
    rotary: bool,
    sinks: bool,
) -> Option<CachedAttentionOperands<'a, 'd>> {
    let (&[query, key, value], rest) = args.split_first_chunk()?;
    let (rotary, rest) = if rotary {
        let (&[cos, sin], rest) = rest.split_first_chunk()?;
        (Some((cos, sin)), rest)
    } else {
        (None, rest)
    };
    let (&positions, rest) = rest.split_first()?;
    let (sinks, caches) = if sinks {
        let (&sinks, rest) = rest.split_first()?;
        (Some(sinks), rest)
    } else {
        (None, rest)
    };
    Some(CachedAttentionOperands { query, key, value, rotary, positions, sinks, caches })
}

fn decompose<'d>(
    b: &mut Builder<'d>,
    operands: &CachedAttentionOperands<'_, 'd>,
    what: &CachedAttention<'_>,
) -> Result<Vec<Value<'d>>> {
    let CachedAttentionOperands { mut query, mut key, value, rotary, positions, sinks, caches } = *operands;
    if let Some((cos, sin)) = rotary {
        query = rope(b, query, cos, sin)?;
        key = rope(b, key, cos, sin)?;
    }
    // Rounded for all rows at once where they share a type, as they do in one pass.
    let element = caches.first().map(|&cache| b.ty(cache).element);
    let shared = element.filter(|&element| caches.iter().all(|&cache| b.ty(cache).element == element));
    let (mut keys, mut values) = (key, value);
    if let Some(element) = shared {
        keys = row::pack(b, key, element)?;
        values = row::pack(b, value, element)?;
    }
    let mut results = Vec::with_capacity(1 + caches.len());
    let mut mixed = Vec::with_capacity(caches.len());
    let mut start = 0;
    for (index, (&cache, &tokens)) in caches.iter().zip(what.rows).enumerate() {
        let end = start + tokens;
        let q = heads_first(b, query, start, end)?;
        let mut key = heads_first(b, keys, start, end)?;
        let mut value = heads_first(b, values, start, end)?;
        let element = b.ty(cache).element;
        if shared.is_none() {
            key = row::pack(b, key, element)?;
            value = row::pack(b, value, element)?;
        }
        let position = b.slice(positions, &[index], &[index + 1])?;
        let position = b.reshape(position, &[])?;
        let length = b.shape(cache)[3];
        let both = joined(b, key, value)?;
        let slots = Slots::of(what.window, length, tokens);
        let cache = slots::write(b, cache, both, what.layer, (3, position), slots)?;
        let k = read(b, what.layer, 0, cache)?;
        let v = read(b, what.layer, 1, cache)?;
        let mask = slots::visible(b, position, tokens, length, (what.window, what.chunked))?;
        let operands = MaskedOperands { q, k, v, mask, biases: None, sinks };
        mixed.push(masked_attention(b, &operands, what.scores(), what.out)?);
        results.push(cache);
        start = end;
    }
    let mixed = join_rows(b, &mixed)?;
    results.insert(0, mixed);
    Ok(results)
}

/// A row's keys and values (`[G, tokens, w]`) as a part of a cache: `[1, 2, G, tokens, w]`.
pub(super) fn joined<'d>(b: &mut Builder<'d>, key: Value<'d>, value: Value<'d>) -> Result<Value<'d>> {
    let mut shape = vec![1, 1];
    shape.extend(b.shape(key));
    let key = b.reshape(key, &shape)?;
    let value = b.reshape(value, &shape)?;
    b.concatenate(&[key, value], 1)
}

/// The keys (`part` 0) or values (`part` 1) of a layer: `[G, length, d]` of floats.
pub(super) fn read<'d>(
    b: &mut Builder<'d>,
    layer: usize,
    part: usize,
    cache: Value<'d>,
) -> Result<Value<'d>> {
    let shape = b.shape(cache);
    let start = [layer, part, 0, 0, 0];
    let limit = [layer + 1, part + 1, shape[2], shape[3], shape[4]];
    let part = b.slice(cache, &start, &limit)?;
    let part = b.reshape(part, &shape[2..])?;
    row::unpack(b, part)
}
