//! Rotary embeddings whose frequencies depend on the length of the sequence.

use mlxcel_models::Rope;

/// Which frequencies a model's rotary embeddings take for the length of a sequence.
///
/// All positions of a sequence are rotated by the frequencies of its length ([`LongRope`](mlxcel_models::LongRope)). What was
/// computed at another length with other frequencies does not serve any more, and is computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rotations {
    /// The lengths beyond which frequencies change.
    contexts: Vec<usize>,
}

impl Rotations {
    /// Those of `ropes`.
    pub(crate) fn new(ropes: &[Rope]) -> Self {
        let contexts = ropes.iter().filter_map(|rope| Some(rope.long.as_ref()?.original_context));
        Self { contexts: contexts.collect() }
    }

    /// Whether the length makes any difference.
    pub(crate) fn depend_on_length(&self) -> bool {
        !self.contexts.is_empty()
    }

    /// The number of the frequencies for sequences of `length`: equal for two lengths where their frequencies are.
    pub(crate) fn of(&self, length: usize) -> usize {
        self.contexts.iter().filter(|&&context| length > context).count()
    }

    /// How many such numbers there are, at most.
    pub(crate) fn count(&self) -> usize {
        self.contexts.len() + 1
    }
}
