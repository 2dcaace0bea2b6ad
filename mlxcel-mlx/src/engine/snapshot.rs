//! The payload of a snapshot, in little-endian 32-bit numbers: the sequence's tokens, how many of them are in
//! the cache, and its epoch; then the cache's content.

use mlxcel_core::{Error, ErrorKind, Result, Snapshot, TokenId};

const WORD: usize = size_of::<u32>();

/// The content of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) tokens: Vec<TokenId>,
    /// How many of them are in the cache.
    pub(super) cached: usize,
    pub(super) epoch: usize,
    /// The cache's content.
    pub(super) states: Vec<u8>,
}

impl Contents {
    /// Encodes the payload.
    pub(super) fn encode(self) -> Vec<u8> {
        // Sequences are shorter than MLX's dimensions, which have 31 bits.
        let numbers = [self.cached, self.epoch].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let words = self.tokens.iter().chain(&numbers);
        let mut payload: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        payload.extend(self.states);
        payload
    }
}

/// Decodes a snapshot's payload, for a model with tokens below `vocabulary_size` and epochs up to
/// `last_epoch`.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] if it does not begin with the snapshot's number of tokens of the vocabulary, or if
/// a number is invalid.
pub(super) fn decode(snapshot: &Snapshot, vocabulary_size: usize, last_epoch: usize) -> Result<Contents> {
    let position = snapshot.position();
    parse(snapshot.payload(), position)
        .filter(|contents| {
            contents.tokens.iter().all(|&token| (token as usize) < vocabulary_size)
                && contents.cached <= position
                && contents.epoch <= last_epoch
        })
        .ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "restore", "the snapshot's payload does not begin with its tokens")
                .with_context("bytes", snapshot.payload().len())
                .with_context("tokens", position)
        })
}

/// The bytes before the cache's content, in a snapshot of `position` tokens; `None` on overflow.
pub(super) fn words(position: usize) -> Option<usize> {
    position.checked_add(2)?.checked_mul(WORD)
}

fn parse(payload: &[u8], position: usize) -> Option<Contents> {
    let (head, states) = payload.split_at_checked(words(position)?)?;
    let words = head.chunks_exact(WORD).map(|word| Some(u32::from_le_bytes(word.try_into().ok()?)));
    let mut tokens = words.collect::<Option<Vec<u32>>>()?;
    let (epoch, cached) = (tokens.pop()? as usize, tokens.pop()? as usize);
    Some(Contents { tokens, cached, epoch, states: states.to_vec() })
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{ModelInfo, StateIdentity};

    use super::*;

    #[test]
    fn snapshots_round_trip_and_inconsistent_ones_are_rejected() {
        let of = |position, payload: Vec<u8>| {
            Snapshot::new(StateIdentity::of(&ModelInfo::new("mlx", "llama", 701)), position, payload)
        };
        let contents = Contents { tokens: vec![3, 700], cached: 1, epoch: 1, states: vec![1, 2, 3] };
        let payload = contents.clone().encode();
        assert_eq!(decode(&of(2, payload.clone()), 701, 1).unwrap(), contents);
        let ahead = Contents { cached: 3, ..contents }.encode();
        for (snapshot, vocabulary, last_epoch) in [
            (of(2, payload.clone()), 700, 1),
            (of(2, payload.clone()), 701, 0),
            (of(2, ahead), 701, 1),
            (of(4, payload.clone()), 701, 1),
            (of(usize::MAX, payload), 701, 1),
            (of(0, vec![]), 701, 1),
        ] {
            let error = decode(&snapshot, vocabulary, last_epoch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
}
