//! Attention over a cache of latent vectors, shared by the keys and values of all heads.

use mlxcel_stablehlo::{Attribute, Builder, ElementType, Error, ErrorKind, Result, TensorType, Value};

use crate::composites::{LATENT_ATTENTION, rows_attribute};
use crate::layers::{
    AttentionScores, MaskedOperands, heads_first, join_rows, masked_attention, refusal, rope,
};

use super::row;
use super::slots::{self, Slots};

/// The operands of [`latent_attention`]: a pass of `N` tokens, row after row.
#[derive(Clone, Copy, Debug)]
pub struct LatentAttentionOperands<'a, 'f> {
    /// `[N, H, r + p]` f32: of each head the part that meets the latent vector, already multiplied by the
    /// key's up-projection, then the part that meets the rotary key, before rotary embedding.
    pub query: Value<'f>,
    /// `[N, r + p]` f32: the latent vector after its norm, then the rotary key of all heads, before rotary
    /// embedding.
    pub entry: Value<'f>,
    /// `[N, p/2]` f32: the cosines of each token's angles, as [`rope`] takes them.
    pub cos: Value<'f>,
    /// `[N, p/2]` f32: the sines of each token's angles.
    pub sin: Value<'f>,
    /// `[rows]` i32: the position of each row's first token; not negative.
    pub positions: Value<'f>,
    /// One cache a row: `[layers, length, r + p]` of floats, entries with their rotary keys rotated.
    pub caches: &'a [Value<'f>],
    /// `[tokens, length]` i1 a row: which positions of its cache each token attends to, of those up to its
    /// own. All of those if there are no masks.
    pub selected: &'a [Value<'f>],
}

/// Attributes of [`latent_attention`].
#[derive(Clone, Copy, Debug)]
pub struct LatentAttention<'a> {
    /// The number of tokens of each row; they add up to `N`.
    pub rows: &'a [usize],
    /// The layer of the caches to read and write.
    pub layer: usize,
    /// The scale of scores.
    pub scale: f32,
    /// The element type of the result.
    pub out: ElementType,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) with the up-projections of keys and values
/// absorbed by the projections around it: the last `p` elements of queries and entries are rotated by
/// position, each row's entries are written into its cache from its position on, and each of its tokens
/// attends to what the cache holds up to the token's own position, or to what is selected of that. Keys are
/// whole entries, values their first `r` elements, the same for every head. Gives `[N, H * r]`, head after
/// head, as [`LatentAttention::out`], and the caches.
///
/// Makes the composite [`LATENT_ATTENTION`]. Its decomposition is made of
/// [`rope`], a conversion to the cache's type, an update of each cache and
/// [`attention`](crate::layers::attention) over all of it under a mask. Where a row does not fit behind its
/// position, it is written at the cache's end.
///
/// # Errors
/// Operands of other ranks or element types, or whose sizes do not agree; rows that do not add up to `N`, or
/// longer than their cache; a layer that caches lack.
pub fn latent_attention<'f>(
    b: &mut Builder<'f>,
    operands: &LatentAttentionOperands<'_, 'f>,
    what: &LatentAttention<'_>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    check(b, operands, what)?;
    let LatentAttentionOperands { query, entry, cos, sin, positions, caches, selected } = *operands;
    let flat: Vec<_> =
        [query, entry, cos, sin, positions].iter().chain(caches).chain(selected).copied().collect();
    let mut attributes = vec![
        ("layer".to_owned(), Attribute::Int(what.layer as i64)),
        rows_attribute(what.rows),
        ("scale".to_owned(), Attribute::Float(what.scale)),
    ];
    if !selected.is_empty() {
        attributes.push(("selected".to_owned(), Attribute::Bool(true)));
    }
    let name = LATENT_ATTENTION;
    let results = b.composite(name, &flat, &attributes, |b, args| decompose(b, args, what))?;
    match results.split_first() {
        Some((&mixed, caches)) => Ok((mixed, caches.to_vec())),
        None => Err(Error::new(ErrorKind::Structure, "latent_attention", "the result type is missing")),
    }
}

fn check<'f>(
    b: &Builder<'f>,
    operands: &LatentAttentionOperands<'_, 'f>,
    what: &LatentAttention<'_>,
) -> Result<()> {
    let LatentAttentionOperands { query, entry, cos, sin, positions, caches, selected } = *operands;
    let named = [("query", query), ("entry", entry), ("cos", cos), ("sin", sin), ("positions", positions)];
    let error = |kind, detail: &str| Err(refusal(b, "latent_attention", named, kind, detail));
    let ty = |value| b.ty(value);
    if [query, entry, cos, sin].iter().any(|&value| ty(value).element != ElementType::F32)
        || ty(positions).element != ElementType::I32
        || !what.out.is_float()
    {
        let detail = "query, entry, cos and sin must be of f32, positions of i32, the result of floats";
        return error(ErrorKind::Element, detail);
    }
    let (&[tokens, heads, width], &[_, half]) = (&ty(query).shape[..], &ty(cos).shape[..]) else {
        return error(ErrorKind::Shape, "query must be [N, H, r + p], cos and sin [N, p/2]");
    };
    let tables = ty(cos).shape == [tokens, half] && ty(sin).shape == ty(cos).shape;
    if !tables || ty(entry).shape != [tokens, width] || heads == 0 || 2 * half >= width {
        let detail =
            "query must be [N, H, r + p], entry [N, r + p], cos and sin [N, p/2], with r of at least 1";
        return error(ErrorKind::Shape, detail);
    }
    let rows = what.rows;
    if let Some(detail) = slots::row_defect(rows, tokens, ty(positions), caches.len()) {
        return error(ErrorKind::Shape, &detail);
    }
    for (&cache, &row) in caches.iter().zip(rows) {
        let cache = ty(cache);
        if !cache.element.is_float() {
            return error(ErrorKind::Element, &format!("a cache must be of floats, not {}", cache.element));
        }
        let fits = matches!(cache.shape[..], [layers, length, w]
            if layers > what.layer && length >= row && w == width);
        if !fits {
            let detail = format!(
                "a cache of {cache} is not [layers, length, {width}] with layer {} and room for {row}",
                what.layer
            );
            return error(ErrorKind::Shape, &detail);
        }
    }
    let masks = caches.iter().zip(rows).map(|(&cache, &row)| [row, ty(cache).shape[1]]);
    let masks = masks.map(|shape| TensorType::new(ElementType::I1, shape));
    if !selected.is_empty() && !masks.eq(selected.iter().map(|&mask| ty(mask).clone())) {
        let detail = "selected must be a mask [tokens, length] of truth values (i1) for each row";
        return error(ErrorKind::Shape, detail);
    }
    Ok(())
}

fn decompose<'d>(
    b: &mut Builder<'d>,
    args: &[Value<'d>],
    what: &LatentAttention<'_>,
) -> Result<Vec<Value<'d>>> {
    let [query, entry, cos, sin, positions, ref others @ ..] = *args else {
        return Err(Error::new(ErrorKind::Structure, "latent_attention", "operands are missing"));
    };
    let (caches, selected) = others.split_at(what.rows.len().min(others.len()));
    let (tokens, width) = (b.shape(entry)[0], b.shape(entry)[1]);
    let rank = width - 2 * b.shape(cos)[1];
    let query = rope_last(b, query, cos, sin)?;
    let entry = b.reshape(entry, &[tokens, 1, width])?;
    let entry = rope_last(b, entry, cos, sin)?;
    let mut results = Vec::with_capacity(1 + caches.len());
    let mut mixed = Vec::with_capacity(caches.len());
    let mut start = 0;
    for (index, (&cache, &tokens)) in caches.iter().zip(what.rows).enumerate() {
        let end = start + tokens;
        let q = heads_first(b, query, start, end)?;
        let own = b.slice(entry, &[start, 0, 0], &[end, 1, width])?;
        let element = b.ty(cache).element;
        let own = row::saturated(b, own, element)?;
        let own = b.transpose(own, &[1, 0, 2])?;
        let position = b.slice(positions, &[index], &[index + 1])?;
        let position = b.reshape(position, &[])?;
        let cache = slots::write(b, cache, own, what.layer, (1, position), Slots::Straight)?;
        let length = b.shape(cache)[1];
        let k = b.slice(cache, &[what.layer, 0, 0], &[what.layer + 1, length, width])?;
        let v = b.slice(cache, &[what.layer, 0, 0], &[what.layer + 1, length, rank])?;
        let mut mask = slots::visible(b, position, tokens, length, (None, false))?;
        if let Some(&selected) = selected.get(index) {
            mask = b.and(mask, selected)?;
        }
        let operands = MaskedOperands { q, k, v, mask, biases: None, sinks: None };
        mixed.push(masked_attention(
            b,
            &operands,
            AttentionScores { scale: what.scale, soft_cap: None, alibi: false },
            what.out,
        )?);
        results.push(cache);
        start = end;
    }
    let mixed = join_rows(b, &mixed)?;
    results.insert(0, mixed);
    Ok(results)
}

/// [`rope`] of the last elements of heads, as many as there are angles for.
fn rope_last<'d>(b: &mut Builder<'d>, x: Value<'d>, cos: Value<'d>, sin: Value<'d>) -> Result<Value<'d>> {
    let shape = b.shape(x);
    let rank = shape[2] - 2 * b.shape(cos)[1];
    let first = b.slice(x, &[0, 0, 0], &[shape[0], shape[1], rank])?;
    let last = b.slice(x, &[0, 0, rank], &shape)?;
    let last = rope(b, last, cos, sin)?;
    b.concatenate(&[first, last], 2)
}
