//! The state of a sequence between steps: groups of layers with the same layout.

use super::recurrent::previous_state;
use super::{AttentionMask, Compressor, Decoder, Mixer, SparseAttention};

/// The state of one mixer, or one part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StateShape {
    /// Keys and values, of all positions or of the last `window`.
    Cache {
        /// How many heads keep keys and values.
        kv_heads: usize,
        /// The width of each.
        head_dim: usize,
        /// How many positions are seen; `None`: all.
        window: Option<usize>,
    },
    /// One vector per position, shared by all heads: latents, or the keys of an indexer.
    Latent {
        /// Its width.
        width: usize,
    },
    /// A float32 tensor of fixed size: the state of a recurrence.
    Fixed {
        /// Its sizes.
        shape: Vec<usize>,
    },
}

/// The states of several layers, stored together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateGroup {
    /// The state of each layer.
    pub shape: StateShape,
    /// The number of layers.
    pub layers: usize,
}

/// The location of a mixer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateSlot {
    /// The index of the group among [`Decoder::state_groups`].
    pub group: usize,
    /// The index within the group.
    pub layer: usize,
}

impl StateShape {
    /// The number of values in one layer's state for a sequence of `positions`, without an engine's padding
    /// of pages and chunks.
    pub fn values(&self, positions: usize) -> usize {
        match self {
            Self::Cache { kv_heads, head_dim, window } => {
                let kept = window.map_or(positions, |window| window.min(positions));
                2 * kv_heads * head_dim * kept
            }
            Self::Latent { width } => width * positions,
            Self::Fixed { shape } => shape.iter().product(),
        }
    }

    /// Whether dropping later positions restores an earlier state.
    pub fn is_rewindable(&self) -> bool {
        match self {
            Self::Cache { window, .. } => window.is_none(),
            Self::Latent { .. } => true,
            Self::Fixed { .. } => false,
        }
    }
}

impl Mixer {
    /// The parts of its state: none for bidirectional attention and for attention to another layer's keys;
    /// one for caches, before it an indexer's keys, and those of compressors, two each; the convolution's
    /// inputs, or the token before, and the recurrent state for recurrences.
    pub fn states(&self) -> Vec<StateShape> {
        match self {
            Self::Attention(attention) if attention.core.mask == AttentionMask::Bidirectional => Vec::new(),
            Self::Attention(attention) => vec![StateShape::Cache {
                kv_heads: attention.kv_heads,
                head_dim: attention.kept_dim(),
                window: attention.core.window,
            }],
            Self::Shared(_) => Vec::new(),
            Self::Latent(latent) => {
                let index_keys = match &latent.sparse {
                    Some(SparseAttention::Indexed(indexer)) => {
                        Some(StateShape::Latent { width: indexer.head_dim })
                    }
                    Some(SparseAttention::Shared { source: _ }) | None => None,
                };
                let latents = StateShape::Latent { width: latent.rank + latent.rope_dim };
                index_keys.into_iter().chain([latents]).collect()
            }
            Self::Compressed(attention) => {
                let index = attention.indexer.as_ref().map(|indexer| &indexer.compressor);
                let compressors = index.into_iter().chain(&attention.compressor);
                let keys = StateShape::Cache {
                    kv_heads: 1,
                    head_dim: attention.head_dim,
                    window: attention.core.window,
                };
                compressors.flat_map(Compressor::states).chain([keys]).collect()
            }
            Self::ShortConvolution(mixer) => vec![mixer.convolution.state()],
            Self::DeltaRule(mixer) => vec![
                mixer.convolution.state(),
                StateShape::Fixed { shape: vec![mixer.value_heads, mixer.key_dim, mixer.value_dim] },
            ],
            Self::StateSpace(mixer) => vec![
                mixer.convolution.state(),
                StateShape::Fixed { shape: vec![mixer.heads, mixer.head_dim, mixer.state_size] },
            ],
            Self::SelectiveScan(mixer) => vec![
                mixer.convolution.state(),
                StateShape::Fixed { shape: vec![mixer.channels, 1, mixer.state_size] },
            ],
            Self::GeneralizedDeltaRule(mixer) => vec![
                previous_state(mixer.width),
                StateShape::Fixed { shape: vec![mixer.heads, mixer.head_dim, mixer.head_dim] },
            ],
            Self::ShiftedMlp(mixer) => vec![previous_state(mixer.width)],
        }
    }
}

impl Compressor {
    /// Its states: the last values and gates, oldest first, and an entry for each position, that of the window
    /// which ends there. Only the entries of whole windows are read.
    fn states(&self) -> [StateShape; 2] {
        let channels = self.value.outputs + self.gate.outputs;
        [
            StateShape::Fixed { shape: vec![channels, self.taps() - 1] },
            StateShape::Latent { width: self.width },
        ]
    }
}

impl super::Convolution {
    /// Its state, the last inputs: `[channels, taps − 1]`, oldest first.
    pub fn state(&self) -> StateShape {
        StateShape::Fixed { shape: vec![self.channels, self.taps - 1] }
    }
}

impl Decoder {
    /// The groups of a sequence's state, in the order of first use.
    pub fn state_groups(&self) -> Vec<StateGroup> {
        self.place_states().0
    }

    /// The locations of each mixer's states, in the order of [`mixers`](Self::mixers).
    pub fn state_slots(&self) -> Vec<Vec<StateSlot>> {
        self.place_states().1
    }

    /// Whether a sequence can be rewound to any earlier position.
    pub fn is_rewindable(&self) -> bool {
        self.state_groups().iter().all(|group| group.shape.is_rewindable())
    }

    fn place_states(&self) -> (Vec<StateGroup>, Vec<Vec<StateSlot>>) {
        let mut groups: Vec<StateGroup> = Vec::new();
        let mut place = |shape: StateShape| {
            let group = groups.iter().position(|group| group.shape == shape).unwrap_or_else(|| {
                groups.push(StateGroup { shape, layers: 0 });
                groups.len() - 1
            });
            groups[group].layers += 1;
            StateSlot { group, layer: groups[group].layers - 1 }
        };
        let slots = self.mixers().map(|mixer| mixer.states().into_iter().map(&mut place).collect()).collect();
        (groups, slots)
    }
}
