//! KV caches: for each sequence and layer the keys and values of earlier positions.

use mlxcel_core::{Error, ErrorKind, Result};

use crate::array::{Array, DType, concatenate, eval};

/// By how many positions a cache grows at least.
const STEP: usize = 256;

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerLayout {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// How many positions a position sees, its own included; all where none is given.
    pub(super) window: Option<usize>,
    /// Whether only the window's positions are kept.
    pub(super) rotates: bool,
}

/// What the caches of a model look like.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) layers: Vec<LayerLayout>,
    pub(super) element: DType,
}

/// The cache of one sequence. A clone shares its arrays until one of the two is written to.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    pub(super) layers: Vec<LayerCache>,
}

/// Keys and values of one layer, each `[1, kv_heads, length, head_dim]`.
///
/// Position `p` is at index `p`, or where the layer rotates at `p` modulo the window.
#[derive(Clone, Debug)]
pub(super) struct LayerCache {
    keys: Array,
    values: Array,
    length: usize,
}

/// What the queries of some positions attend to: keys and values, each `[1, kv_heads, n, head_dim]`.
#[derive(Debug)]
pub(super) struct Visible {
    pub(super) keys: Array,
    pub(super) values: Array,
    pub(super) order: Order,
}

/// How the keys of [`Visible`] lie to its queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    /// Each query sees every key.
    All,
    /// The last key is of the last query's position, those before it of the positions before, and each query sees its own position
    /// and those before.
    Causal,
    /// Likewise, and of those before only so many that there are this many with its own.
    Window(usize),
}

impl Cache {
    /// The arrays that must be evaluated for the cache to be filled.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values])
    }

    /// The bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.arrays().map(|array| array.byte_len() as u64).sum()
    }

    /// The bytes of what it holds of the first `position` positions: layer after layer keys, then values, of
    /// [`LayerLayout::kept`] positions in their order.
    pub(super) fn read(&self, layout: &Layout, position: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(layout.kept_bytes(position).unwrap_or_default());
        for (cache, layer) in self.layers.iter().zip(&layout.layers) {
            for array in [&cache.keys, &cache.values] {
                bytes.extend(layer.in_order(array, position, layer.kept(position))?.to_bytes()?);
            }
        }
        Ok(bytes)
    }

    /// A cache of what [`read`](Self::read) gave.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] where the bytes are not as many as `position` positions have.
    pub(super) fn from_bytes(layout: &Layout, position: usize, bytes: &[u8]) -> Result<Self> {
        if layout.kept_bytes(position) != Some(bytes.len()) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "restore",
                "the snapshot's payload has the wrong size",
            )
            .with_context("bytes", bytes.len())
            .with_context("tokens", position));
        }
        let mut rest = bytes;
        let mut layers = Vec::with_capacity(layout.layers.len());
        for layer in &layout.layers {
            let kept = layer.kept(position);
            let mut next = || {
                let (head, tail) = rest.split_at(layer.bytes(kept, layout.element));
                rest = tail;
                Array::from_bytes(head, &layer.shape(kept), layout.element)
            };
            let (keys, values) = (next()?, next()?);
            layers.push(layer.filled(&keys, &values, position, layout.element)?);
        }
        let cache = Self { layers };
        eval(cache.arrays())?;
        Ok(cache)
    }
}

impl Layout {
    /// The bytes that [`Cache::read`] gives; none where they are too many to count.
    fn kept_bytes(&self, position: usize) -> Option<usize> {
        self.layers.iter().try_fold(0usize, |sum, layer| {
            let row = layer.bytes(1, self.element);
            sum.checked_add(layer.kept(position).checked_mul(row)?.checked_mul(2)?)
        })
    }
}

impl LayerLayout {
    /// How many of `position` positions are kept: the last ones.
    fn kept(&self, position: usize) -> usize {
        match self.window {
            Some(window) if self.rotates => position.min(window),
            _ => position,
        }
    }

    fn shape(&self, length: usize) -> [usize; 4] {
        [1, self.kv_heads, length, self.head_dim]
    }

    fn bytes(&self, length: usize, element: DType) -> usize {
        self.kv_heads * length * self.head_dim * element.size()
    }

    /// The length that a cache gets that must have room for `positions`.
    fn length_for(&self, positions: usize) -> usize {
        // In proportion to what there is, so that the copies of a long sequence's growth stay in proportion too.
        let step = STEP.max((positions / 8).next_multiple_of(STEP));
        let length = positions.next_multiple_of(step);
        match self.window {
            Some(window) if self.rotates => length.min(window),
            _ => length,
        }
    }

    /// DTypes `from..to` along the positions of keys or values.
    fn part(&self, array: &Array, from: usize, to: usize) -> Result<Array> {
        array.slice(&[0, 0, from, 0], &[1, self.kv_heads, to, self.head_dim])
    }

    /// The last `count` of the first `position` positions of a cache's keys or values, in their order.
    fn in_order(&self, array: &Array, position: usize, count: usize) -> Result<Array> {
        let first = position - count;
        let Some(window) = self.window.filter(|_| self.rotates) else {
            return self.part(array, first, position);
        };
        let (from, to) = (first % window, first % window + count);
        if to <= window {
            return self.part(array, from, to);
        }
        concatenate([&self.part(array, from, window)?, &self.part(array, 0, to - window)?], 2)
    }

    /// The cache after `keys` and `values` (`[1, kv_heads, count, head_dim]`) of the positions from `position` on, and what the
    /// queries of those positions see.
    pub(super) fn extend(
        &self,
        cache: Option<&LayerCache>,
        position: usize,
        keys: &Array,
        values: &Array,
        element: DType,
    ) -> Result<(LayerCache, Visible)> {
        let count = keys.dim(2);
        let end = position + count;
        if let Some(window) = self.window.filter(|&window| self.rotates && end > window) {
            return self.rotate(cache, position, keys, values, window, element);
        }
        let grown = self.with_room(cache, position, end, element)?;
        let stop = [1, self.kv_heads, end, self.head_dim];
        let write = |array: &Array, update: &Array| array.slice_update(update, &[0, 0, position, 0], &stop);
        let cache = LayerCache {
            keys: write(&grown.keys, keys)?,
            values: write(&grown.values, values)?,
            length: grown.length,
        };
        // The first query sees from here on.
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let order = match (count, self.window) {
            (1, _) => Order::All,
            (_, Some(window)) if end > window => Order::Window(window),
            _ => Order::Causal,
        };
        let visible = Visible {
            keys: self.part(&cache.keys, first, end)?,
            values: self.part(&cache.values, first, end)?,
            order,
        };
        Ok((cache, visible))
    }

    /// [`extend`](Self::extend) where not everything is kept.
    fn rotate(
        &self,
        cache: Option<&LayerCache>,
        position: usize,
        keys: &Array,
        values: &Array,
        window: usize,
        element: DType,
    ) -> Result<(LayerCache, Visible)> {
        let count = keys.dim(2);
        if count == 1 {
            let grown = self.with_room(cache, position, window, element)?;
            let index = position % window;
            let stop = [1, self.kv_heads, index + 1, self.head_dim];
            let write = |array: &Array, update: &Array| array.slice_update(update, &[0, 0, index, 0], &stop);
            let cache = LayerCache {
                keys: write(&grown.keys, keys)?,
                values: write(&grown.values, values)?,
                length: window,
            };
            // All of it is in the window, and attention does not ask for the order.
            let visible =
                Visible { keys: cache.keys.clone(), values: cache.values.clone(), order: Order::All };
            return Ok((cache, visible));
        }
        let before = position.min(window - 1);
        let join = |array: Option<&Array>, new: &Array| match array {
            Some(array) if before > 0 => concatenate([&self.in_order(array, position, before)?, new], 2),
            _ => Ok(new.clone()),
        };
        let keys = join(cache.map(|cache| &cache.keys), keys)?;
        let values = join(cache.map(|cache| &cache.values), values)?;
        let seen = before + count;
        let kept = seen.min(window);
        let last = |array: &Array| self.part(array, seen - kept, seen);
        let cache = self.filled(&last(&keys)?, &last(&values)?, position + count, element)?;
        Ok((cache, Visible { keys, values, order: Order::Window(window) }))
    }

    /// A cache of a sequence of `position` positions, of which `keys` and `values` are the kept ones in their order.
    fn filled(&self, keys: &Array, values: &Array, position: usize, element: DType) -> Result<LayerCache> {
        let length = self.length_for(position);
        let place = |array: &Array| match self.window.filter(|&window| self.rotates && position > window) {
            Some(window) => {
                // The first of them is of position `position - window`.
                let at = (window - position % window) % window;
                if at == 0 {
                    return Ok(array.clone());
                }
                concatenate([&self.part(array, at, window)?, &self.part(array, 0, at)?], 2)
            }
            None => {
                let stop = [1, self.kv_heads, position, self.head_dim];
                Array::zeros(&self.shape(length), element)?.slice_update(array, &[0; 4], &stop)
            }
        };
        Ok(LayerCache { keys: place(keys)?, values: place(values)?, length })
    }

    /// The cache with its first `position` positions, with room for `positions`.
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
        Ok(LayerCache {
            keys: grow(cache.map(|cache| &cache.keys))?,
            values: grow(cache.map(|cache| &cache.values))?,
            length,
        })
    }
}

#[cfg(test)]
mod tests;
