//! The cache of one layer: its state for each position of a sequence.

use mlxcel_core::Result;

use crate::array::{Array, DType, concatenate};

/// The least number of positions that a cache grows by.
pub(super) const STEP: usize = 256;

/// The state of one layer per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheLayout {
    /// The heads of keys (and values); one for latents.
    pub(super) heads: usize,
    /// The width of a head, or of a latent.
    pub(super) width: usize,
    /// Whether there are values besides the keys; not for latents.
    pub(super) has_values: bool,
    /// How many positions a position sees, including itself, and thus how many are kept; defaults to all.
    pub(super) window: Option<usize>,
}

/// The keys and values of one layer, each `[1, heads, length, width]`.
///
/// Position `p` is at index `p`, or with a window at `p` modulo the window.
#[derive(Clone, Debug)]
pub(super) struct LayerCache {
    pub(super) keys: Array,
    pub(super) values: Option<Array>,
    length: usize,
}

/// The keys and values that the queries of some positions attend to, each `[1, heads, n, width]`.
#[derive(Debug)]
pub(super) struct Visible {
    pub(super) keys: Array,
    pub(super) values: Option<Array>,
    pub(super) order: Order,
}

/// The order of the keys of [`Visible`] relative to its queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    /// Each query sees every key.
    All,
    /// The last key has the last query's position, those before it the positions before; each query sees its
    /// own position and those before.
    Causal,
    /// As `Causal`, limited to this many positions including its own.
    Window(usize),
    /// There are as many keys as queries; each query sees the keys at a distance of less than this.
    Near(usize),
}

impl Visible {
    /// What the queries of `count` positions from `position` on see of this if they see nothing before their
    /// chunk, of `chunk` positions: for each chunk the number of its queries, and its keys.
    ///
    /// The cache's window, if it has one, is as long as a chunk.
    pub(super) fn in_chunks(
        &self,
        position: usize,
        count: usize,
        chunk: usize,
    ) -> Result<Vec<(usize, Self)>> {
        let part = |array: &Array, from: usize, to: usize| array.slice_axis(2, from, to);
        let of = |from: usize, to: usize, order: Order| -> Result<Self> {
            let values = self.values.as_ref().map(|values| part(values, from, to)).transpose()?;
            Ok(Self { keys: part(&self.keys, from, to)?, values, order })
        };
        if count == 1 {
            // A ring of one chunk has the positions of this chunk first, then older ones.
            return Ok(vec![(1, of(0, position % chunk + 1, Order::All)?)]);
        }
        let end = position + count;
        // The position of the first key.
        let first = end.saturating_sub(self.keys.dim(2));
        let mut chunks = Vec::new();
        let mut from = position;
        while from < end {
            let begin = from - from % chunk;
            let to = end.min(begin + chunk);
            let order = if to - from == 1 { Order::All } else { Order::Causal };
            chunks.push((to - from, of(begin - first, to - first, order)?));
            from = to;
        }
        Ok(chunks)
    }
}

impl Visible {
    /// What a query sees that attends to nothing but these positions (`[n]`, `U32`), from the first key on.
    pub(super) fn only(&self, positions: &Array) -> Result<Self> {
        let part = |array: &Array| array.take(positions, 2);
        let values = self.values.as_ref().map(part).transpose()?;
        Ok(Self { keys: part(&self.keys)?, values, order: Order::All })
    }
}

impl LayerCache {
    /// Keys, and values if present.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        std::iter::once(&self.keys).chain(&self.values)
    }
}

impl CacheLayout {
    /// How many of `position` positions are kept: the last ones.
    pub(super) fn kept(&self, position: usize) -> usize {
        self.window.map_or(position, |window| position.min(window))
    }

    /// The number of arrays: keys, and values if present.
    pub(super) fn arrays(&self) -> usize {
        1 + usize::from(self.has_values)
    }

    pub(super) fn shape(&self, length: usize) -> [usize; 4] {
        [1, self.heads, length, self.width]
    }

    /// The length of a cache for `positions`.
    pub(super) fn length_for(&self, positions: usize) -> usize {
        // Proportional to the length, so that the copies while a sequence grows are proportional to it too.
        let step = STEP.max((positions / 8).next_multiple_of(STEP));
        let length = positions.next_multiple_of(step);
        self.window.map_or(length, |window| length.min(window))
    }

    /// The elements `from..to` along the positions of keys or values.
    fn part(&self, array: &Array, from: usize, to: usize) -> Result<Array> {
        array.slice(&[0, 0, from, 0], &[1, self.heads, to, self.width])
    }

    /// The last `count` of the first `position` positions of a cache's keys or values, in order.
    pub(super) fn in_order(&self, array: &Array, position: usize, count: usize) -> Result<Array> {
        let first = position - count;
        let Some(window) = self.window else {
            return self.part(array, first, position);
        };
        let (from, to) = (first % window, first % window + count);
        if to <= window {
            return self.part(array, from, to);
        }
        concatenate([&self.part(array, from, window)?, &self.part(array, 0, to - window)?], 2)
    }

    /// The cache after `keys` and `values` (`[1, heads, count, width]`) of the positions from `position` on,
    /// and what their queries see.
    pub(super) fn extend(
        &self,
        cache: Option<&LayerCache>,
        position: usize,
        keys: &Array,
        values: Option<&Array>,
        element: DType,
    ) -> Result<(LayerCache, Visible)> {
        let count = keys.dim(2);
        let end = position + count;
        if let Some(window) = self.window.filter(|&window| end > window) {
            return self.rotate(cache, position, [Some(keys), values], window, element);
        }
        let cache = self.with_room(cache, position, end, element)?.write(self, position, keys, values)?;
        let visible = Visible {
            keys: self.part(&cache.keys, 0, end)?,
            values: cache.values.as_ref().map(|values| self.part(values, 0, end)).transpose()?,
            order: if count == 1 { Order::All } else { Order::Causal },
        };
        Ok((cache, visible))
    }

    /// [`extend`](Self::extend) for caches that keep only a window.
    fn rotate(
        &self,
        cache: Option<&LayerCache>,
        position: usize,
        [keys, values]: [Option<&Array>; 2],
        window: usize,
        element: DType,
    ) -> Result<(LayerCache, Visible)> {
        let count = keys.map_or(0, |keys| keys.dim(2));
        if let Some(keys) = keys.filter(|_| count == 1) {
            let cache = self.with_room(cache, position.min(window), window, element)?;
            let cache = cache.write(self, position % window, keys, values)?;
            // All of it is in the window, and attention does not depend on the order.
            let visible =
                Visible { keys: cache.keys.clone(), values: cache.values.clone(), order: Order::All };
            return Ok((cache, visible));
        }
        let before = position.min(window - 1);
        let join = |array: Option<&Array>, new: Option<&Array>| match (array, new) {
            (Some(array), Some(new)) if before > 0 => {
                concatenate([&self.in_order(array, position, before)?, new], 2).map(Some)
            }
            (_, new) => Ok(new.cloned()),
        };
        let keys = join(cache.map(|cache| &cache.keys), keys)?;
        let values = join(cache.and_then(|cache| cache.values.as_ref()), values)?;
        let Some(keys) = keys else { return Err(no_keys()) };
        let seen = before + count;
        let kept = seen.min(window);
        let last = |array: &Array| self.part(array, seen - kept, seen);
        let kept_values = values.as_ref().map(last).transpose()?;
        let cache = self.filled(&last(&keys)?, kept_values.as_ref(), position + count, element)?;
        Ok((cache, Visible { keys, values, order: Order::Window(window) }))
    }

    /// A cache of a sequence of `position` positions, with the kept `keys` and `values` in order.
    pub(super) fn filled(
        &self,
        keys: &Array,
        values: Option<&Array>,
        position: usize,
        element: DType,
    ) -> Result<LayerCache> {
        let length = self.length_for(position);
        let place = |array: &Array| match self.window.filter(|&window| position > window) {
            Some(window) => {
                // The first of them has position `position - window`.
                let at = (window - position % window) % window;
                if at == 0 {
                    return array.contiguous();
                }
                concatenate([&self.part(array, at, window)?, &self.part(array, 0, at)?], 2)
            }
            None => {
                let stop = [1, self.heads, position, self.width];
                Array::zeros(&self.shape(length), element)?.slice_update(array, &[0; 4], &stop)
            }
        };
        Ok(LayerCache { keys: place(keys)?, values: values.map(place).transpose()?, length })
    }

    /// The cache with its first `position` positions, and capacity for `positions`.
    fn with_room(
        &self,
        cache: Option<&LayerCache>,
        position: usize,
        positions: usize,
        element: DType,
    ) -> Result<LayerCache> {
        let cache = match cache {
            Some(cache) if cache.length >= positions => {
                return Ok(cache.clone());
            }
            cache => cache.filter(|_| position > 0),
        };
        let length = self.length_for(positions);
        let grow = |array: Option<&Array>| match array {
            Some(array) => {
                let more = Array::zeros(&self.shape(length - position), element)?;
                concatenate([&self.part(array, 0, position)?, &more], 2)
            }
            None => Array::zeros(&self.shape(length), element),
        };
        let values = cache.map(|cache| cache.values.as_ref());
        Ok(LayerCache {
            keys: grow(cache.map(|cache| &cache.keys))?,
            values: self.has_values.then(|| grow(values.flatten())).transpose()?,
            length,
        })
    }
}

impl LayerCache {
    /// The cache with keys and values from `index` on.
    fn write(self, layout: &CacheLayout, index: usize, keys: &Array, values: Option<&Array>) -> Result<Self> {
        let stop = [1, layout.heads, index + keys.dim(2), layout.width];
        let write = |array: &Array, update: &Array| array.slice_update(update, &[0, 0, index, 0], &stop);
        let updated = match (&self.values, values) {
            (Some(array), Some(update)) => Some(write(array, update)?),
            (None, None) => None,
            _ => return Err(no_keys()),
        };
        Ok(Self { keys: write(&self.keys, keys)?, values: updated, length: self.length })
    }
}

fn no_keys() -> mlxcel_core::Error {
    let message = "a layer got keys or values of the wrong shape";
    mlxcel_core::Error::new(mlxcel_core::ErrorKind::Internal, "step", message)
}

#[cfg(test)]
mod tests;
