//! Attention of new tokens over a KV cache that they are written into first.

use super::kv_row;
use crate::builder::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Attribute, Comparison};
use crate::types::{ElementType, TensorType};

/// The operands of [`Builder::cached_attention`]: a pass of `N` tokens, row after row.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttentionOperands<'a, 'f> {
    /// `[N, H, d]` f32, before rotary embedding.
    pub query: Value<'f>,
    /// `[N, G, d]` f32, before rotary embedding.
    pub key: Value<'f>,
    /// `[N, G, d]` f32.
    pub value: Value<'f>,
    /// `[N, r/2]` f32: the cosines of each token's angles, as [`Builder::rope`] takes them.
    pub cos: Value<'f>,
    /// `[N, r/2]` f32: the sines of each token's angles.
    pub sin: Value<'f>,
    /// `[rows]` i32: the position of each row's first token.
    pub positions: Value<'f>,
    /// One cache a row: `[layers, 2, G, length, w]`, keys then values. Of floats, `w` is `d`; of i8, it is `d + 4`: a
    /// position's values as signed bytes, then the f32 that they are multiples of.
    pub caches: &'a [Value<'f>],
}

/// What [`Builder::cached_attention`] computes, beside its operands.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention<'a> {
    /// How many tokens each row has; they add up to `N`.
    pub rows: &'a [usize],
    /// Which of the caches' layers is read and written.
    pub layer: usize,
    /// What scores are multiplied by, usually one over the square root of `d`.
    pub scale: f32,
    /// How many positions a token sees, its own among them; all up to its own where none is given.
    pub window: Option<usize>,
    /// The element type of the result.
    pub out: ElementType,
}

impl<'f> Builder<'f> {
    /// The attention layer of a decoder between its projections: queries and keys are rotated by position, each row's keys
    /// and values are written into its cache from its position on, and each of its tokens attends to what the cache holds up
    /// to the token's own position. Gives `[N, H * d]`, head after head, as [`CachedAttention::out`], and the caches.
    ///
    /// Makes the composite [`mlxcel.cached_attention`](crate::composites::CACHED_ATTENTION). Its decomposition is made of
    /// [`rope`](Self::rope), a conversion to the cache's type, an update of each cache and [`attention`](Self::attention) over all
    /// of it under a mask. Where a row does not fit behind its position, it is written at the cache's end. A kernel in its
    /// place reads no position that none of the row's tokens sees.
    ///
    /// Values are kept in 8 bits as round(x / s) for s the largest magnitude of the position's `d` values over 127.
    ///
    /// # Errors
    /// Operands of other ranks or element types, or whose sizes do not agree; rows that do not add up to `N`, or longer than
    /// their cache; a layer that caches lack; `H` that is no multiple of `G`.
    pub fn cached_attention(
        &mut self,
        operands: &CachedAttentionOperands<'_, 'f>,
        what: &CachedAttention<'_>,
    ) -> Result<(Value<'f>, Vec<Value<'f>>)> {
        self.check_cached_attention(operands, what)?;
        let CachedAttentionOperands { query, key, value, cos, sin, positions, caches } = *operands;
        let flat: Vec<_> =
            [query, key, value, cos, sin, positions].into_iter().chain(caches.iter().copied()).collect();
        let rows = what.rows.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut attributes = vec![
            ("layer".to_owned(), Attribute::Int(what.layer as i64)),
            ("rows".to_owned(), Attribute::Text(rows)),
            ("scale".to_owned(), Attribute::Float(what.scale)),
        ];
        if let Some(window) = what.window {
            attributes.push(("window".to_owned(), Attribute::Int(window as i64)));
        }
        let name = crate::composites::CACHED_ATTENTION;
        let results = self.composite(name, &flat, &attributes, |b, args| decompose(b, args, what))?;
        match results.split_first() {
            Some((&mixed, caches)) => Ok((mixed, caches.to_vec())),
            None => Err(Error::new(ErrorKind::Structure, "cached_attention", "there is no result")),
        }
    }

    fn check_cached_attention(
        &self,
        operands: &CachedAttentionOperands<'_, 'f>,
        what: &CachedAttention<'_>,
    ) -> Result<()> {
        let CachedAttentionOperands { query, key, value, cos, sin, positions, caches } = *operands;
        let named = [
            ("query", query),
            ("key", key),
            ("value", value),
            ("cos", cos),
            ("sin", sin),
            ("positions", positions),
        ];
        let error = |kind, detail: String| {
            let operands = named.map(|(name, value)| (name.to_owned(), self.ty(value).clone())).to_vec();
            Err(Error::new(kind, "cached_attention", detail).with_operands(operands))
        };
        let ty = |value| self.ty(value);
        if [query, key, value, cos, sin].iter().any(|&value| ty(value).element != ElementType::F32)
            || ty(positions).element != ElementType::I32
            || !what.out.is_float()
        {
            let detail =
                "query, key, value, cos and sin must be of f32, positions of i32, the result of floats";
            return error(ErrorKind::Element, detail.to_owned());
        }
        let (&[tokens, heads, width], &[_, groups, _]) = (&ty(query).shape[..], &ty(key).shape[..]) else {
            return error(ErrorKind::Shape, "query must be [N, H, d], key and value [N, G, d]".to_owned());
        };
        let same = ty(key).shape == [tokens, groups, width] && ty(value).shape == ty(key).shape;
        if !same || groups == 0 || heads % groups != 0 {
            let detail = "query must be [N, H, d], key and value [N, G, d], H a multiple of G";
            return error(ErrorKind::Shape, detail.to_owned());
        }
        let rows = what.rows;
        if rows.contains(&0) || rows.iter().sum::<usize>() != tokens || ty(positions).shape != [rows.len()] {
            let detail = format!("rows of {rows:?} tokens need as many positions, and add up to N");
            return error(ErrorKind::Shape, detail);
        }
        if caches.len() != rows.len() {
            return error(ErrorKind::Shape, format!("{} rows need as many caches", rows.len()));
        }
        for (&cache, &row) in caches.iter().zip(rows) {
            let cache = ty(cache);
            let element = cache.element;
            let Some(row_width) = kv_row::width(element, width) else {
                return error(ErrorKind::Element, format!("a cache must be of floats or i8, not {element}"));
            };
            let fits = matches!(cache.shape[..], [layers, 2, g, length, w]
                if layers > what.layer && g == groups && length >= row && w == row_width);
            if !fits {
                let detail = format!(
                    "a cache of {cache} is not [layers, 2, {groups}, length, {row_width}] with layer {} and room for {row}",
                    what.layer
                );
                return error(ErrorKind::Shape, detail);
            }
        }
        Ok(())
    }
}

fn decompose<'d>(
    b: &mut Builder<'d>,
    args: &[Value<'d>],
    what: &CachedAttention<'_>,
) -> Result<Vec<Value<'d>>> {
    let [query, key, value, cos, sin, positions, ref caches @ ..] = *args else {
        return Err(Error::new(ErrorKind::Structure, "cached_attention", "operands are missing"));
    };
    let query = b.rope(query, cos, sin)?;
    let key = b.rope(key, cos, sin)?;
    // Rounded for all rows at once where they share a type, as they do in one pass.
    let element = caches.first().map(|&cache| b.ty(cache).element);
    let shared = element.filter(|&element| caches.iter().all(|&cache| b.ty(cache).element == element));
    let (mut keys, mut values) = (key, value);
    if let Some(element) = shared {
        keys = kv_row::pack(b, key, element)?;
        values = kv_row::pack(b, value, element)?;
    }
    let mut results = Vec::with_capacity(1 + caches.len());
    let mut mixed = Vec::with_capacity(caches.len());
    let mut start = 0;
    for (index, (&cache, &tokens)) in caches.iter().zip(what.rows).enumerate() {
        let end = start + tokens;
        let query = heads_first(b, query, start, end)?;
        let mut key = heads_first(b, keys, start, end)?;
        let mut value = heads_first(b, values, start, end)?;
        let element = b.ty(cache).element;
        if shared.is_none() {
            key = kv_row::pack(b, key, element)?;
            value = kv_row::pack(b, value, element)?;
        }
        let position = b.slice(positions, &[index], &[index + 1])?;
        let position = b.reshape(position, &[])?;
        let cache = write(b, what.layer, position, cache, key, value)?;
        let keys = read(b, what.layer, 0, cache)?;
        let values = read(b, what.layer, 1, cache)?;
        let length = b.shape(keys)[1];
        let mask = visible(b, position, tokens, length, what.window)?;
        mixed.push(b.attention(query, keys, values, mask, what.scale, what.out)?);
        results.push(cache);
        start = end;
    }
    let mixed = if let [only] = mixed[..] { only } else { b.concatenate(&mixed, 0)? };
    results.insert(0, mixed);
    Ok(results)
}

/// Tokens `start..end` of `x` (`[N, heads, w]`) as `[heads, tokens, w]`.
fn heads_first<'d>(b: &mut Builder<'d>, x: Value<'d>, start: usize, end: usize) -> Result<Value<'d>> {
    let shape = b.shape(x);
    let part = b.slice(x, &[start, 0, 0], &[end, shape[1], shape[2]])?;
    b.transpose(part, &[1, 0, 2])
}

/// The cache with a row's keys and values (`[G, tokens, w]`) at its position.
fn write<'d>(
    b: &mut Builder<'d>,
    layer: usize,
    position: Value<'d>,
    cache: Value<'d>,
    key: Value<'d>,
    value: Value<'d>,
) -> Result<Value<'d>> {
    let mut shape = vec![1, 1];
    shape.extend(b.shape(key));
    let key = b.reshape(key, &shape)?;
    let value = b.reshape(value, &shape)?;
    let both = b.concatenate(&[key, value], 1)?;
    let layer = b.scalar(layer as i32)?;
    let zero = b.scalar(0i32)?;
    b.dynamic_update_slice(cache, both, &[layer, zero, zero, position, zero])
}

/// The keys (`part` 0) or values (`part` 1) of a layer: `[G, length, d]` of floats.
fn read<'d>(b: &mut Builder<'d>, layer: usize, part: usize, cache: Value<'d>) -> Result<Value<'d>> {
    let shape = b.shape(cache);
    let start = [layer, part, 0, 0, 0];
    let limit = [layer + 1, part + 1, shape[2], shape[3], shape[4]];
    let part = b.slice(cache, &start, &limit)?;
    let part = b.reshape(part, &shape[2..])?;
    kv_row::unpack(b, part)
}

/// `[tokens, length]` i1: token t of a row stands at `position` + t and sees the positions up to its own, or the last
/// `window` of them.
fn visible<'d>(
    b: &mut Builder<'d>,
    position: Value<'d>,
    tokens: usize,
    length: usize,
    window: Option<usize>,
) -> Result<Value<'d>> {
    let grid = TensorType::new(ElementType::I32, [tokens, length]);
    let seen = b.iota(grid.clone(), 1)?;
    let token = b.iota(grid.clone(), 0)?;
    let first = b.broadcast_in_dim(position, &grid.shape, &[])?;
    let own = b.add(token, first)?;
    let causal = b.compare(seen, own, Comparison::LessOrEqual)?;
    // A window as long as the cache hides nothing; a shorter one is within what positions count up to.
    let Some(window) = window.filter(|&window| window < length) else { return Ok(causal) };
    let width = b.splat(ElementType::I32, window as f64, &grid.shape)?;
    let before = b.subtract(own, width)?;
    let near = b.compare(seen, before, Comparison::Greater)?;
    b.and(causal, near)
}
