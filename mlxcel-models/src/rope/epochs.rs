//! Sequence lengths at which rotary frequencies change.

use super::Rope;

/// Ranges of sequence lengths with constant rotary frequencies, as numbered epochs.
///
/// The frequencies of all positions depend on the sequence's length ([`LongRope`](super::LongRope)). State
/// computed in one epoch is invalid in another: a sequence that crosses the boundary is recomputed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RopeEpochs {
    /// The greatest length of each epoch but the last, ascending.
    boundaries: Vec<usize>,
}

impl RopeEpochs {
    /// Those of a network with these embeddings.
    pub(crate) fn new<'a>(ropes: impl IntoIterator<Item = &'a Rope>) -> Self {
        let long = ropes.into_iter().filter_map(|rope| rope.long.as_ref());
        let mut boundaries: Vec<usize> = long.map(|long| long.original_context).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        Self { boundaries }
    }

    /// Whether there is more than one epoch, so that frequencies depend on the length.
    pub fn depend_on_length(&self) -> bool {
        !self.boundaries.is_empty()
    }

    /// The number of epochs, at least one.
    pub fn count(&self) -> usize {
        self.boundaries.len() + 1
    }

    /// The epoch of sequences of `length`, less than [`count`](Self::count).
    pub fn at(&self, length: usize) -> usize {
        self.boundaries.iter().filter(|&&boundary| length > boundary).count()
    }

    /// The largest length of the epoch in which the position after `length` is computed; `None` in the last
    /// epoch.
    pub fn end_after(&self, length: usize) -> Option<usize> {
        self.boundaries.iter().copied().find(|&boundary| boundary > length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::LongRope;
    use super::*;

    #[test]
    fn an_epoch_ends_with_the_original_context() {
        let rope = |original_context: Option<usize>| Rope {
            rotary_dim: 2,
            inv_freq: vec![1.0],
            attention_factor: 1.0,
            interleaved: false,
            delay: 0,
            long: original_context.map(|original_context| LongRope {
                inv_freq: vec![0.5],
                original_context,
                attention_factor: None,
            }),
        };
        let single = RopeEpochs::new(&[rope(None)]);
        assert!(!single.depend_on_length() && single.count() == 1);
        assert_eq!((single.at(usize::MAX), single.end_after(0)), (0, None));
        let several = RopeEpochs::new(&[rope(Some(64)), rope(None), rope(Some(8)), rope(Some(64))]);
        assert!(several.depend_on_length() && several.count() == 3);
        assert_eq!([8, 9, 64, 65].map(|length| several.at(length)), [0, 1, 1, 2]);
        assert_eq!(
            [7, 8, 63, 64].map(|length| several.end_after(length)),
            [Some(8), Some(64), Some(64), None]
        );
    }
}
