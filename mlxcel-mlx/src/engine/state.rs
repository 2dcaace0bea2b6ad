//! The state of sequences between steps: caches and recurrent states, in the groups of the decoder.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::{Decoder, StateGroup, StateShape, StateSlot};

use super::cache::{CacheLayout, LayerCache};
use crate::array::{Array, DType, eval};

/// The layout of a model's states.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    groups: Vec<GroupLayout>,
    /// The type of keys, values and latents; recurrent states are float32.
    pub(super) element: DType,
}

#[derive(Clone, Debug)]
struct GroupLayout {
    state: StateLayout,
    layers: usize,
}

/// The state of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StateLayout {
    /// An entry per position.
    Cache(CacheLayout),
    /// A tensor of fixed size.
    Fixed(Vec<usize>),
}

/// The states of one sequence. A clone shares its arrays until one of the two is written to.
#[derive(Clone, Debug, Default)]
pub(super) struct States {
    groups: Vec<Vec<LayerState>>,
}

/// The state of one layer.
#[derive(Clone, Debug)]
pub(super) enum LayerState {
    Cache(LayerCache),
    Fixed(Array),
}

/// The states of a sequence before a pass, of the groups that the pass overwrites.
#[derive(Debug, Default)]
pub(super) struct Overwritten(Vec<Vec<LayerState>>);

impl Layout {
    /// The layout of sequences of up to `capacity` positions.
    pub(super) fn new(decoder: &Decoder, element: DType, capacity: usize) -> Self {
        let group = |group: StateGroup| {
            let StateGroup { shape, layers } = group;
            let state = match shape {
                StateShape::Cache { kv_heads, head_dim, window } => StateLayout::Cache(CacheLayout {
                    heads: kv_heads,
                    width: head_dim,
                    has_values: true,
                    // A window that is never filled drops nothing.
                    window: window.filter(|&window| window < capacity),
                }),
                StateShape::Latent { width } => {
                    StateLayout::Cache(CacheLayout { heads: 1, width, has_values: false, window: None })
                }
                StateShape::Fixed { shape } => StateLayout::Fixed(shape),
            };
            GroupLayout { state, layers }
        };
        Self { groups: decoder.state_groups().into_iter().map(group).collect(), element }
    }

    /// The layout of the layers of a group.
    pub(super) fn at(&self, slot: StateSlot) -> Result<&StateLayout> {
        self.groups.get(slot.group).map(|group| &group.state).ok_or_else(|| misplaced(slot))
    }

    /// Whether dropping later positions restores an earlier state.
    pub(super) fn is_rewindable(&self) -> bool {
        self.groups.iter().all(|group| match &group.state {
            StateLayout::Cache(cache) => cache.window.is_none(),
            StateLayout::Fixed(_) => false,
        })
    }

    /// Whether a step overwrites states.
    pub(super) fn is_recurrent(&self) -> bool {
        self.groups.iter().any(|group| matches!(group.state, StateLayout::Fixed(_)))
    }

    /// The states of all layers, in order.
    fn layers(&self) -> impl Iterator<Item = &StateLayout> {
        self.groups.iter().flat_map(|group| std::iter::repeat_n(&group.state, group.layers))
    }

    /// The size of [`States::read`]; `None` on overflow.
    pub(super) fn kept_bytes(&self, position: usize) -> Option<usize> {
        self.layers().try_fold(0usize, |sum, layer| {
            let bytes = layer.shapes(position).iter().try_fold(0usize, |sum, shape| {
                let count = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
                sum.checked_add(count.checked_mul(layer.element(self.element).size())?)
            });
            sum.checked_add(bytes?)
        })
    }
}

impl StateLayout {
    /// The shapes of the arrays that [`States::read`] reads at `position` positions.
    fn shapes(&self, position: usize) -> Vec<Vec<usize>> {
        match self {
            Self::Cache(cache) => vec![cache.shape(cache.kept(position)).to_vec(); cache.arrays()],
            Self::Fixed(_) if position == 0 => Vec::new(),
            Self::Fixed(shape) => vec![shape.clone()],
        }
    }

    fn element(&self, cache: DType) -> DType {
        match self {
            Self::Cache(_) => cache,
            Self::Fixed(_) => DType::F32,
        }
    }
}

impl Overwritten {
    /// Their size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().flatten().flat_map(LayerState::arrays).map(|array| array.byte_len() as u64).sum()
    }
}

impl LayerState {
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (cache, fixed) = match self {
            Self::Cache(cache) => (Some(cache), None),
            Self::Fixed(array) => (None, Some(array)),
        };
        cache.into_iter().flat_map(LayerCache::arrays).chain(fixed)
    }
}

impl States {
    /// The arrays to evaluate so that the states are filled.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.groups.iter().flatten().flat_map(LayerState::arrays)
    }

    /// Their size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.arrays().map(|array| array.byte_len() as u64).sum()
    }

    /// The state at a slot; none before the first position.
    pub(super) fn get(&self, slot: StateSlot) -> Option<&LayerState> {
        self.groups.get(slot.group)?.get(slot.layer)
    }

    /// Adds the state at a slot, the next of its group.
    pub(super) fn push(&mut self, slot: StateSlot, state: LayerState) -> Result<()> {
        if self.groups.len() <= slot.group {
            self.groups.resize_with(slot.group + 1, Vec::new);
        }
        match self.groups.get_mut(slot.group).filter(|layers| layers.len() == slot.layer) {
            Some(layers) => layers.push(state),
            None => return Err(misplaced(slot)),
        }
        Ok(())
    }

    /// The states that passes up to `end` overwrite: recurrent ones, and windows that they fill.
    pub(super) fn overwritten(&self, layout: &Layout, end: usize) -> Overwritten {
        let of = |(layers, layout): (&Vec<LayerState>, &GroupLayout)| match &layout.state {
            StateLayout::Cache(cache) if cache.kept(end) == end => Vec::new(),
            _ => layers.clone(),
        };
        Overwritten(self.groups.iter().zip(&layout.groups).map(of).collect())
    }

    /// The current recurrent states.
    pub(super) fn recurrent(&self, layout: &Layout) -> Overwritten {
        self.overwritten(layout, 0)
    }

    /// Puts states back.
    pub(super) fn put_back(&mut self, states: Overwritten) {
        for (layers, earlier) in self.groups.iter_mut().zip(states.0) {
            if !earlier.is_empty() {
                *layers = earlier;
            }
        }
    }

    /// The bytes of the first `position` positions, layer by layer: keys, then values, of
    /// [`CacheLayout::kept`] positions in order, for caches; and recurrent states, which are those after
    /// `position`.
    pub(super) fn read(&self, layout: &Layout, position: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let size = layout.kept_bytes(position).unwrap_or_default();
        bytes.try_reserve_exact(size).map_err(|_| Error::out_of_memory("snapshot", size))?;
        for (state, layer) in self.groups.iter().flatten().zip(layout.layers()) {
            match (state, layer) {
                (LayerState::Cache(cache), StateLayout::Cache(layer)) => {
                    for array in cache.arrays() {
                        bytes.extend(layer.in_order(array, position, layer.kept(position))?.to_bytes()?);
                    }
                }
                (LayerState::Fixed(array), StateLayout::Fixed(_)) => bytes.extend(array.to_bytes()?),
                _ => {
                    let message = "the states have another layout";
                    return Err(Error::new(ErrorKind::Internal, "snapshot", message));
                }
            }
        }
        Ok(bytes)
    }

    /// States from the bytes of [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the number of bytes does not match `position` positions.
    pub(super) fn from_bytes(layout: &Layout, position: usize, bytes: &[u8]) -> Result<Self> {
        if layout.kept_bytes(position) != Some(bytes.len()) {
            let message = "the snapshot's payload has the wrong size";
            return Err(Error::new(ErrorKind::Corrupt, "restore", message)
                .with_context("bytes", bytes.len())
                .with_context("tokens", position));
        }
        if position == 0 {
            return Ok(Self::default());
        }
        let mut remainder = bytes;
        let mut groups = Vec::with_capacity(layout.groups.len());
        for group in &layout.groups {
            let mut layers = Vec::with_capacity(group.layers);
            for _ in 0..group.layers {
                let element = group.state.element(layout.element);
                let arrays = group.state.shapes(position).into_iter().map(|shape| {
                    let size = shape.iter().product::<usize>() * element.size();
                    let (head, tail) = remainder.split_at(size);
                    remainder = tail;
                    Array::from_bytes(head, &shape, element)
                });
                let arrays = arrays.collect::<Result<Vec<_>>>()?;
                layers.push(match (&group.state, &arrays[..]) {
                    (StateLayout::Cache(cache), [keys, values @ ..]) => {
                        LayerState::Cache(cache.filled(keys, values.first(), position, element)?)
                    }
                    (StateLayout::Fixed(_), [array]) => LayerState::Fixed(array.clone()),
                    _ => return Err(Error::new(ErrorKind::Internal, "restore", "a state has no arrays")),
                });
            }
            groups.push(layers);
        }
        let states = Self { groups };
        eval(states.arrays())?;
        Ok(states)
    }
}

fn misplaced(slot: StateSlot) -> Error {
    Error::new(ErrorKind::Internal, "step", "the decoder does not have this state")
        .with_context("group", slot.group)
        .with_context("layer", slot.layer)
}

#[cfg(test)]
mod tests;
