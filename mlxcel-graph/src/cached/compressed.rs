//! Attention over a cache of a window, and over entries that earlier positions are compressed to.

use mlxcel_stablehlo::{Builder, ElementType, ErrorKind, Result, Value};

use crate::layers::{AttentionScores, MaskedOperands, heads_first, join_rows, masked_attention, refusal};

use super::attention::{joined, read};
use super::row;
use super::slots::{self, Slots};

/// The operands of [`compressed_attention`]: a pass of `N` tokens, row after row.
#[derive(Clone, Copy, Debug)]
pub struct CompressedAttentionOperands<'a, 'f> {
    /// `[N, H, d]` f32, rotated.
    pub query: Value<'f>,
    /// `[N, 1, d]` f32, rotated: keys and values.
    pub key: Value<'f>,
    /// `[N, 1, d]` f32: the entries of the windows that tokens are the last of, keys and values too.
    pub entry: Value<'f>,
    /// `[rows]` i32: the position of each row's first token; not negative.
    pub positions: Value<'f>,
    /// `[H]` of floats: one more score of each query head, which takes part in the softmax and has no value.
    pub sinks: Option<Value<'f>>,
    /// One cache a row: as [`cached_attention`](super::cached_attention) has them, of one head.
    pub caches: &'a [Value<'f>],
    /// One cache of entries a row: `[layers, length, d]` of floats, with an entry for each position.
    pub entry_caches: &'a [Value<'f>],
    /// `[tokens, length / rate]` i1 a row: which entries each token attends to, of those that it sees. All of
    /// those if there are no masks.
    pub selected: &'a [Value<'f>],
}

/// Attributes of [`compressed_attention`].
#[derive(Clone, Copy, Debug)]
pub struct CompressedAttention<'a> {
    /// The number of tokens of each row; they add up to `N`.
    pub rows: &'a [usize],
    /// The layer of the caches to read and write.
    pub layer: usize,
    /// The layer of the caches of entries.
    pub entry_layer: usize,
    /// The scale of scores.
    pub scale: f32,
    /// How many positions a token attends to, including its own.
    pub window: Option<usize>,
    /// The number of positions that an entry is made of. A token sees the entries at the last positions of
    /// all windows up to its own position.
    pub rate: usize,
}

/// Attention over a window and entries, which share a softmax (DeepSeek-V4). Each row's keys and entries are
/// written into its caches from its position on. Gives `[N, H * d]` f32, head after head, the caches, and the
/// caches of entries.
///
/// # Errors
/// Operands of other ranks or element types, or whose sizes do not agree; rows that do not add up to `N`, or
/// longer than their cache; a layer that caches lack.
pub fn compressed_attention<'f>(
    b: &mut Builder<'f>,
    operands: &CompressedAttentionOperands<'_, 'f>,
    what: &CompressedAttention<'_>,
) -> Result<(Value<'f>, Vec<Value<'f>>, Vec<Value<'f>>)> {
    check(b, operands, what)?;
    let CompressedAttentionOperands { query, key, entry, positions, sinks, caches, entry_caches, selected } =
        *operands;
    let &CompressedAttention { rows, layer, entry_layer, scale, window, rate } = what;
    let scores = AttentionScores { scale, soft_cap: None, alibi: false };
    let (mut mixed, mut results, mut entry_results) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = 0;
    for (index, &tokens) in rows.iter().enumerate() {
        let (cache, entry_cache) = (caches[index], entry_caches[index]);
        let end = start + tokens;
        let position = b.slice(positions, &[index], &[index + 1])?;
        let position = b.reshape(position, &[])?;
        let q = heads_first(b, query, start, end)?;

        let own = heads_first(b, key, start, end)?;
        let own = row::pack(b, own, b.ty(cache).element)?;
        let length = b.shape(cache)[3];
        let both = joined(b, own, own)?;
        let slots = Slots::of(window, length, tokens);
        let cache = slots::write(b, cache, both, layer, (3, position), slots)?;
        let near = read(b, layer, 0, cache)?;
        let near = b.convert(near, ElementType::F32)?;
        let near_mask = slots::visible(b, position, tokens, length, (window, false))?;

        let own = heads_first(b, entry, start, end)?;
        let own = row::saturated(b, own, b.ty(entry_cache).element)?;
        let straight = Slots::Straight;
        let entry_cache = slots::write(b, entry_cache, own, entry_layer, (1, position), straight)?;
        let windows = b.shape(entry_cache)[1] / rate;
        let (keys, mask) = if windows == 0 {
            (near, near_mask)
        } else {
            let far = slots::closing(b, entry_cache, entry_layer, rate)?;
            let far = b.convert(far, ElementType::F32)?;
            let width = b.shape(far)[1];
            let far = b.reshape(far, &[1, windows, width])?;
            let mut far_mask = slots::closed(b, position, tokens, windows, rate)?;
            if let Some(&selected) = selected.get(index) {
                far_mask = b.and(far_mask, selected)?;
            }
            (b.concatenate(&[near, far], 1)?, b.concatenate(&[near_mask, far_mask], 1)?)
        };
        let operands = MaskedOperands { q, k: keys, v: keys, mask, biases: None, sinks };
        mixed.push(masked_attention(b, &operands, scores, ElementType::F32)?);
        results.push(cache);
        entry_results.push(entry_cache);
        start = end;
    }
    Ok((join_rows(b, &mixed)?, results, entry_results))
}

fn check<'f>(
    b: &Builder<'f>,
    operands: &CompressedAttentionOperands<'_, 'f>,
    what: &CompressedAttention<'_>,
) -> Result<()> {
    let CompressedAttentionOperands { query, key, entry, positions, caches, entry_caches, selected, .. } =
        *operands;
    let named = [("query", query), ("key", key), ("entry", entry), ("positions", positions)];
    let error = |kind, detail: &str| Err(refusal(b, "compressed_attention", named, kind, detail));
    let ty = |value| b.ty(value);
    if [query, key, entry].iter().any(|&value| ty(value).element != ElementType::F32)
        || ty(positions).element != ElementType::I32
    {
        return error(ErrorKind::Element, "query, key and entry must be of f32, positions of i32");
    }
    let &[tokens, _, width] = &ty(query).shape[..] else {
        return error(ErrorKind::Shape, "query must be [N, H, d]");
    };
    if [key, entry].iter().any(|&value| ty(value).shape != [tokens, 1, width]) {
        return error(ErrorKind::Shape, "key and entry must be [N, 1, d]");
    }
    if what.rate == 0 || what.window == Some(0) {
        return error(ErrorKind::Attribute, "a window and a rate must be positive");
    }
    if let Some(detail) = slots::row_defect(what.rows, tokens, ty(positions), caches.len()) {
        return error(ErrorKind::Shape, &detail);
    }
    let is_missing =
        entry_caches.len() != caches.len() || !selected.is_empty() && selected.len() != caches.len();
    let fits = |(index, &row): (usize, &usize)| {
        let (cache, entries) = (ty(caches[index]), ty(entry_caches[index]));
        matches!(cache.shape[..], [layers, 2, 1, length, w]
            if layers > what.layer && length >= row && Some(w) == row::width(cache.element, width))
            && matches!(entries.shape[..], [layers, length, w]
                if layers > what.entry_layer && length >= row && w == width && entries.element.is_float())
    };
    if is_missing || !what.rows.iter().enumerate().all(fits) {
        let detail = "caches must be [layers, 2, 1, length, d] and [layers, length, d] with the layers, and room for \
                      the tokens of each row";
        return error(ErrorKind::Shape, detail);
    }
    Ok(())
}
