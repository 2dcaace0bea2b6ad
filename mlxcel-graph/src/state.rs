//! The states of sequences between steps: a tensor for each group of layers with the same kind of state.

use mlxcel_core::{Error, Result};
use mlxcel_models::{Decoder, StateGroup, StateShape};
use mlxcel_stablehlo::{ElementType, TensorType};

use crate::numerics::Numerics;

/// The memory layout of the state of one group of layers.
///
/// | kept | shape | element type |
/// |---|---|---|
/// | keys and values of all positions | `[layers, 2, kv_heads, length, width]` | [`Numerics::kv`] |
/// | keys and values of a window | the same with `min(length, ring)` positions | [`Numerics::kv`] |
/// | latents | `[layers, length, width]` | [`Numerics::kv`] |
/// | what does not grow | `[layers, …]` | float32 |
///
/// `length` is that of the program ([`ProgramShape::length`](crate::ProgramShape)). Position `p` is in slot
/// `p` modulo the number of slots. So a window behaves like a full cache up to the length of its ring buffer,
/// and does not grow beyond it.
///
/// The width of keys and values is the head size; for 8 bits, plus four bytes per position for the float32
/// scale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLayout {
    /// The kind of state of each layer.
    pub kept: StateShape,
    /// The number of layers.
    pub layers: usize,
    /// The element type.
    pub element: ElementType,
    /// The maximum number of slots, if bounded by a window.
    pub ring: Option<usize>,
}

/// A contiguous segment to copy between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSegment {
    /// Its offset in the source, in bytes.
    pub from: usize,
    /// Its offset in the destination, in bytes.
    pub to: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// The layouts of the groups of `decoder` ([`Decoder::state_groups`]), for prompt chunks of at most `chunk`
/// tokens.
///
/// # Errors
///
/// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for latents in 8 bits, which have no heads to share a
/// scale.
pub fn state_layouts(decoder: &Decoder, numerics: Numerics, chunk: usize) -> Result<Vec<StateLayout>> {
    decoder.state_groups().into_iter().map(|group| StateLayout::new(group, numerics.kv, chunk)).collect()
}

/// The length beyond which no state of `decoder` grows, at least that of a `chunk`: programs for it serve
/// every longer sequence too. `None` where the states of a layer grow with every position.
pub(crate) fn bounded_room(decoder: &Decoder, chunk: usize) -> Option<usize> {
    let mut rooms = decoder.state_groups().into_iter().map(|StateGroup { shape, layers: _ }| match shape {
        StateShape::Cache { window, .. } => ring(window?, chunk),
        StateShape::Latent { .. } => None,
        StateShape::Fixed { .. } => Some(0),
    });
    rooms.try_fold(chunk, |most, room| Some(most.max(room?)))
}

/// The length of the ring for a `window`: while a chunk's positions are written, padding too, those that its
/// first token sees must stay. `None` where no memory would hold it.
fn ring(window: usize, chunk: usize) -> Option<usize> {
    window.checked_add(chunk)?.checked_next_multiple_of(ALIGNMENT)
}

/// Rings are multiples of this many positions, as the lengths of full caches are.
const ALIGNMENT: usize = 64;

impl StateLayout {
    fn new(group: StateGroup, kv: ElementType, chunk: usize) -> Result<Self> {
        let StateGroup { shape, layers } = group;
        let (element, ring) = match &shape {
            StateShape::Cache { kv_heads: _, head_dim: _, window } => {
                (kv, window.and_then(|window| ring(window, chunk)))
            }
            StateShape::Latent { width: _ } if kv == ElementType::I8 => {
                return Err(Error::unsupported(
                    "choose the KV cache",
                    "latent attention keeps its cache in floating point; choose a type other than int8",
                )
                .with_context("kv_cache", "int8"));
            }
            StateShape::Latent { width: _ } => (kv, None),
            StateShape::Fixed { shape: _ } => (ElementType::F32, None),
        };
        Ok(Self { kept: shape, layers, element, ring })
    }

    /// The number of slots of a state for programs of `length`; `None` if it has no positions.
    pub fn room(&self, length: usize) -> Option<usize> {
        match self.kept {
            StateShape::Cache { .. } | StateShape::Latent { .. } => {
                Some(self.ring.map_or(length, |ring| ring.min(length)))
            }
            StateShape::Fixed { .. } => None,
        }
    }

    /// The shape of the tensor for programs of `length`.
    pub fn shape(&self, length: usize) -> Vec<usize> {
        let room = self.room(length).unwrap_or_default();
        match &self.kept {
            StateShape::Cache { kv_heads, .. } => vec![self.layers, 2, *kv_heads, room, self.width()],
            StateShape::Latent { .. } => vec![self.layers, room, self.width()],
            StateShape::Fixed { shape } => [&[self.layers], &shape[..]].concat(),
        }
    }

    /// The type of the tensor for programs of `length`.
    pub fn tensor_type(&self, length: usize) -> TensorType {
        TensorType::new(self.element, self.shape(length))
    }

    /// The size of the state for programs of `length`, in bytes.
    pub fn bytes(&self, length: usize) -> usize {
        self.tensor_type(length).bytes()
    }

    /// The memory of a state for programs of `length` with `written` positions, in bytes, counted in whole
    /// pages of `page` bytes.
    pub fn bytes_written(&self, length: usize, written: usize, page: usize) -> usize {
        let whole = self.bytes(length);
        let Some(room) = self.room(length) else { return whole };
        let run = self.element.bytes_for(self.width()) * written.min(room);
        (self.parts() * run.next_multiple_of(page.max(1))).min(whole)
    }

    /// Whether the state can be rewound by dropping later positions, for sequences of up to `positions`: a
    /// ring buffer of at least that length overwrites nothing.
    pub fn is_rewindable(&self, positions: usize) -> bool {
        self.kept.is_rewindable() || self.ring.is_some_and(|ring| ring >= positions)
    }

    /// Whether the state is of all tokens at once, so that none of them can be dropped.
    pub fn is_recurrent(&self) -> bool {
        matches!(self.kept, StateShape::Fixed { .. })
    }

    /// Whether later positions can be dropped as long as no more than `positions` were written behind the
    /// earliest that remains to be read: a ring has room for as many beside its window.
    pub(crate) fn outlasts(&self, positions: usize) -> bool {
        match (&self.kept, self.ring) {
            (StateShape::Cache { window: Some(window), .. }, Some(ring)) => positions <= ring - window,
            (StateShape::Cache { .. } | StateShape::Latent { .. }, _) => true,
            (StateShape::Fixed { .. }, _) => false,
        }
    }

    /// The segments that hold the first `positions` in a state for the length `from` and in one for `to`,
    /// both large enough. A packed copy is a state for exactly `positions`.
    pub fn copy_segments(
        &self,
        from: usize,
        to: usize,
        positions: usize,
    ) -> impl Iterator<Item = StateSegment> + use<> {
        let row = self.element.bytes_for(self.width());
        let (parts, from, to, rows) = match (self.room(from), self.room(to), self.room(positions)) {
            (Some(from), Some(to), Some(rows)) => (self.parts(), from, to, rows),
            _ => (self.layers, 1, 1, 1),
        };
        (0..parts).map(move |part| StateSegment {
            from: part * from * row,
            to: part * to * row,
            bytes: rows * row,
        })
    }

    /// How many runs of positions there are.
    fn parts(&self) -> usize {
        match &self.kept {
            StateShape::Cache { kv_heads, .. } => self.layers * 2 * kv_heads,
            StateShape::Latent { .. } | StateShape::Fixed { .. } => self.layers,
        }
    }

    /// The elements of one position in such a run, or of a layer that keeps no positions.
    fn width(&self) -> usize {
        match &self.kept {
            StateShape::Cache { head_dim, .. } if self.element == ElementType::I8 => head_dim + 4,
            StateShape::Cache { head_dim, .. } => *head_dim,
            StateShape::Latent { width } => *width,
            StateShape::Fixed { shape } => shape.iter().product(),
        }
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::ErrorKind;

    use super::*;

    fn layout(shape: StateShape, kv: ElementType, chunk: usize) -> StateLayout {
        StateLayout::new(StateGroup { shape, layers: 3 }, kv, chunk).unwrap()
    }

    fn cache(window: Option<usize>) -> StateShape {
        StateShape::Cache { kv_heads: 2, head_dim: 8, window }
    }

    #[test]
    fn a_full_cache_grows_with_the_length() {
        let full = layout(cache(None), ElementType::BF16, 64);
        assert_eq!(full.shape(256), [3, 2, 2, 256, 8]);
        assert_eq!(full.bytes(256), 3 * 2 * 2 * 256 * 8 * 2);
        assert_eq!(layout(cache(None), ElementType::I8, 64).shape(256), [3, 2, 2, 256, 12]);
        let latent = layout(StateShape::Latent { width: 5 }, ElementType::F32, 64);
        assert_eq!(latent.shape(1024), [3, 1024, 5]);
        assert!(full.is_rewindable(usize::MAX) && latent.is_rewindable(usize::MAX));
    }

    #[test]
    fn a_window_stops_growing_where_a_padded_chunk_fits_behind_it() {
        let window = layout(cache(Some(100)), ElementType::F32, 64);
        assert_eq!(window.shape(64), [3, 2, 2, 64, 8]);
        assert_eq!(window.shape(192), window.shape(131_072));
        assert_eq!(window.room(131_072), Some(192));
        assert!(window.is_rewindable(192) && !window.is_rewindable(193));
        assert!(window.outlasts(92) && !window.outlasts(93));
        assert!(window.room(usize::MAX).unwrap() >= 100 - 1 + 64);
        // A window that no memory holds is none.
        assert_eq!(layout(cache(Some(usize::MAX)), ElementType::F32, 64).room(2048), Some(2048));
    }

    #[test]
    fn recurrent_states_are_float32_of_fixed_size() {
        let fixed = layout(StateShape::Fixed { shape: vec![4, 2] }, ElementType::I8, 64);
        assert_eq!((fixed.element, fixed.shape(64), fixed.room(64)), (ElementType::F32, vec![3, 4, 2], None));
        assert_eq!(fixed.bytes(0), 3 * 8 * 4);
        assert!(!fixed.is_rewindable(0) && !fixed.outlasts(0) && fixed.is_recurrent());
    }

    #[test]
    fn unwritten_cache_pages_take_no_memory() {
        // 12 runs of 16,384 positions of 16 bytes.
        let full = layout(cache(None), ElementType::BF16, 64);
        let written = |positions| full.bytes_written(16_384, positions, 4096);
        assert_eq!(
            (written(0), written(1), written(256), written(257)),
            (0, 12 * 4096, 12 * 4096, 24 * 4096)
        );
        assert_eq!(written(2049), 12 * 9 * 4096);
        assert_eq!((written(16_384), written(20_000)), (full.bytes(16_384), full.bytes(16_384)));
        // Runs that share a page take it once, and a window no more than it is long.
        assert_eq!(full.bytes_written(64, 1, 4096), full.bytes(64));
        let window = layout(cache(Some(100)), ElementType::F32, 64);
        assert_eq!(window.bytes_written(131_072, 5000, 1), window.bytes(131_072));
        let fixed = layout(StateShape::Fixed { shape: vec![4, 2] }, ElementType::I8, 64);
        assert_eq!(fixed.bytes_written(64, 0, 4096), fixed.bytes(64));
    }

    #[test]
    fn int8_latent_caches_are_rejected() {
        let group = StateGroup { shape: StateShape::Latent { width: 5 }, layers: 1 };
        let error = StateLayout::new(group, ElementType::I8, 64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("latent attention"), "{error}");
    }

    #[test]
    fn segments_cover_the_kept_positions_in_both_states() {
        for (shape, positions) in [
            (cache(None), 70),
            (cache(Some(10)), 70),
            (cache(Some(10)), 200),
            (StateShape::Latent { width: 5 }, 70),
            (StateShape::Fixed { shape: vec![4, 2] }, 70),
        ] {
            let layout = layout(shape, ElementType::F32, 64);
            let packed: Vec<_> = layout.copy_segments(256, positions, positions).collect();
            let bytes: usize = packed.iter().map(|part| part.bytes).sum();
            assert_eq!(bytes, layout.bytes(positions), "{layout:?}");
            let mut end = 0;
            for part in &packed {
                assert_eq!(part.to, end);
                end += part.bytes;
                assert!(part.from + part.bytes <= layout.bytes(256));
            }
            let back = layout.copy_segments(positions, 256, positions);
            assert!(back.zip(&packed).all(|(back, part)| (back.from, back.to) == (part.to, part.from)));
        }
    }
}
