//! The slots of positions in a KV cache: consecutive, or a ring buffer for a window.

use mlxcel_stablehlo::{Builder, Comparison, ElementType, Result, TensorType, Value};

/// How the positions of a row with `tokens` tokens stand in the slots of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// Position `p` in slot `p`.
    Straight,
    /// Position `p` in slot `p mod length`, for a window of this many positions.
    Ring { window: usize },
}

impl Slots {
    /// A cache of `length` slots is a ring where those are enough for a window and the row's tokens: then
    /// what a token overwrites is out of the window of every token from the row's first on.
    pub(super) fn of(window: Option<usize>, length: usize, tokens: usize) -> Self {
        match window {
            Some(window) if window.saturating_add(tokens) <= length.saturating_add(1) => {
                Self::Ring { window }
            }
            _ => Self::Straight,
        }
    }
}

/// What is wrong with `rows` whose tokens are `tokens` in all, if they do not fit their `positions` and their
/// number of `caches`.
pub(super) fn row_defect(
    rows: &[usize],
    tokens: usize,
    positions: &TensorType,
    caches: usize,
) -> Option<String> {
    if rows.contains(&0) || rows.iter().sum::<usize>() != tokens || positions.shape != [rows.len()] {
        return Some(format!("rows of {rows:?} tokens need as many positions, and add up to N"));
    }
    (caches != rows.len()).then(|| format!("{} rows need as many caches", rows.len()))
}

/// `cache` with `entries` written over its slots from that of the position `position` (a scalar i32) on.
///
/// `entries` has the shape of a part of one of the cache's layers, which are dimension 0, with all of it but
/// in `dimension`, that of slots.
pub(super) fn write<'d>(
    b: &mut Builder<'d>,
    cache: Value<'d>,
    entries: Value<'d>,
    layer: usize,
    (dimension, position): (usize, Value<'d>),
    slots: Slots,
) -> Result<Value<'d>> {
    let shape = b.shape(entries);
    let (length, tokens) = (b.shape(cache)[dimension], shape[dimension]);
    let layer = b.scalar(layer as i32)?;
    let none = b.scalar(0i32)?;
    let mut at = vec![none; shape.len()];
    at[0] = layer;
    at[dimension] = position;
    if slots == Slots::Straight {
        return b.dynamic_update_slice(cache, entries, &at);
    }
    let slot = modulo(b, position, length)?;
    at[dimension] = slot;
    if tokens == 1 {
        return b.dynamic_update_slice(cache, entries, &at);
    }
    // Two updates of as many slots as there are tokens, of which each keeps some of what it finds: one that
    // ends with the cache at the latest, and one from slot 0 on for the tokens behind that. Tokens are
    // rotated by as many as the first starts earlier than the row, so that one order serves both.
    let last = b.scalar((length - tokens) as i32)?;
    let first = b.minimum(slot, last)?;
    let earlier = b.subtract(slot, first)?;
    let count = b.scalar(tokens as i32)?;
    let rotation = b.subtract(count, earlier)?;
    let twice = b.concatenate(&[entries, entries], dimension)?;
    let mut from = vec![none; shape.len()];
    from[dimension] = rotation;
    let rotated = b.dynamic_slice(twice, &from, &shape)?;
    let index = b.iota(TensorType::new(ElementType::I32, shape.clone()), dimension)?;
    let bound = b.broadcast_scalar(earlier, &shape)?;
    let behind = b.compare(index, bound, Comparison::GreaterOrEqual)?;
    at[dimension] = first;
    let before = b.dynamic_slice(cache, &at, &shape)?;
    let part = b.select(behind, rotated, before)?;
    let cache = b.dynamic_update_slice(cache, part, &at)?;
    at[dimension] = none;
    let before = b.dynamic_slice(cache, &at, &shape)?;
    let part = b.select(behind, before, rotated)?;
    b.dynamic_update_slice(cache, part, &at)
}

/// `[tokens, length]` i1: which slots token t of a row, which stands at `position` + t, sees. It sees the
/// positions up to its own, or the last of them that `window` says; where that is the length of chunks
/// (`chunked`), those of its own chunk.
pub(super) fn visible<'d>(
    b: &mut Builder<'d>,
    position: Value<'d>,
    tokens: usize,
    length: usize,
    (window, chunked): (Option<usize>, bool),
) -> Result<Value<'d>> {
    if let Slots::Ring { window } = Slots::of(window, length, tokens) {
        return visible_in_ring(b, position, tokens, length, (window, chunked));
    }
    let grid = TensorType::new(ElementType::I32, [tokens, length]);
    let seen = b.iota(grid.clone(), 1)?;
    let own = own_positions(b, position, &grid)?;
    let causal = b.compare(seen, own, Comparison::LessOrEqual)?;
    // A window as long as the cache hides nothing; a shorter one is within what positions count up to.
    let Some(window) = window.filter(|&window| window < length) else { return Ok(causal) };
    let near = if chunked {
        let within = modulo(b, own, window)?;
        let first = b.subtract(own, within)?;
        b.compare(seen, first, Comparison::GreaterOrEqual)?
    } else {
        let width = b.splat(ElementType::I32, window as f64, &grid.shape)?;
        let before = b.subtract(own, width)?;
        b.compare(seen, before, Comparison::Greater)?
    };
    b.and(causal, near)
}

/// `[tokens, windows]` i1: which windows of `rate` positions end at the position of token t of a row, which
/// stands at `position` + t, or before.
pub(super) fn closed<'d>(
    b: &mut Builder<'d>,
    position: Value<'d>,
    tokens: usize,
    windows: usize,
    rate: usize,
) -> Result<Value<'d>> {
    let grid = TensorType::new(ElementType::I32, [tokens, windows]);
    let window = b.iota(grid.clone(), 1)?;
    let own = own_positions(b, position, &grid)?;
    let one = b.splat(ElementType::I32, 1.0, &grid.shape)?;
    let seen = b.add(own, one)?;
    let rate = b.splat(ElementType::I32, rate as f64, &grid.shape)?;
    let whole = b.divide(seen, rate)?;
    b.compare(window, whole, Comparison::Less)
}

/// The entries of a layer of a `cache` (`[layers, length, width]`) at the last of each `rate` positions:
/// `[length / rate, width]`.
pub(super) fn closing<'d>(
    b: &mut Builder<'d>,
    cache: Value<'d>,
    layer: usize,
    rate: usize,
) -> Result<Value<'d>> {
    let &[_, length, width] = &b.shape(cache)[..] else { return Ok(cache) };
    let (start, limit) = ([layer, rate - 1, 0], [layer + 1, length, width]);
    let entries = b.slice_strided(cache, &start, &limit, &[1, rate, 1])?;
    b.reshape(entries, &[length / rate, width])
}

/// The position of token t, which is `position` + t, in each place of `grid`, whose dimension 0 are tokens.
fn own_positions<'d>(b: &mut Builder<'d>, position: Value<'d>, grid: &TensorType) -> Result<Value<'d>> {
    let token = b.iota(grid.clone(), 0)?;
    let first = b.broadcast_scalar(position, &grid.shape)?;
    b.add(token, first)
}

/// [`visible`] where slot `s` holds, for a token at position q, the position `q - ((q - s) mod length)`, if
/// that is not negative.
fn visible_in_ring<'d>(
    b: &mut Builder<'d>,
    position: Value<'d>,
    tokens: usize,
    length: usize,
    (window, chunked): (usize, bool),
) -> Result<Value<'d>> {
    let grid = [tokens, length];
    let own = own_positions(b, position, &TensorType::new(ElementType::I32, [tokens]))?;
    let slot = modulo(b, own, length)?;
    let own = b.expand(own, &grid, &[1])?;
    let slot = b.expand(slot, &grid, &[1])?;
    let seen = b.iota(TensorType::new(ElementType::I32, grid), 1)?;
    // How many positions before the token's own: between 0 and length.
    let ahead = b.subtract(slot, seen)?;
    let round = b.splat(ElementType::I32, length as f64, &grid)?;
    let around = b.add(ahead, round)?;
    let later = b.compare(seen, slot, Comparison::Greater)?;
    let back = b.select(later, around, ahead)?;
    if chunked {
        // A position exists in each place of a chunk.
        let within = modulo(b, own, window)?;
        return b.compare(back, within, Comparison::LessOrEqual);
    }
    let exists = b.compare(back, own, Comparison::LessOrEqual)?;
    let width = b.splat(ElementType::I32, window as f64, &grid)?;
    let near = b.compare(back, width, Comparison::Less)?;
    b.and(exists, near)
}

/// `x mod length` of numbers of i32 that are not negative.
fn modulo<'d>(b: &mut Builder<'d>, x: Value<'d>, length: usize) -> Result<Value<'d>> {
    let shape = b.shape(x);
    let length = b.splat(ElementType::I32, length as f64, &shape)?;
    b.remainder(x, length)
}
