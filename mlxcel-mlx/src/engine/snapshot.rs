//! The payload of a snapshot: the sequence's tokens (32 bits each, little-endian), then what its cache holds.

use mlxcel_core::{Error, ErrorKind, Result, Snapshot, TokenId};

const TOKEN_BYTES: usize = size_of::<TokenId>();

/// The payload of a sequence of `tokens` whose cache holds `kv`.
pub(super) fn encode(tokens: &[TokenId], kv: Vec<u8>) -> Vec<u8> {
    let mut payload: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    payload.extend(kv);
    payload
}

/// The tokens in a snapshot's payload, and what its cache held.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] where it does not begin with as many tokens of the vocabulary as the snapshot says.
pub(super) fn decode(snapshot: &Snapshot, vocabulary_size: usize) -> Result<(Vec<TokenId>, Vec<u8>)> {
    let position = snapshot.position();
    let split =
        position.checked_mul(TOKEN_BYTES).and_then(|bytes| snapshot.payload().split_at_checked(bytes));
    let parsed = split.map(|(head, kv)| {
        let tokens: Vec<TokenId> = head
            .chunks_exact(TOKEN_BYTES)
            .filter_map(|word| Some(TokenId::from_le_bytes(word.try_into().ok()?)))
            .collect();
        (tokens, kv.to_vec())
    });
    parsed.filter(|(tokens, _)| tokens.iter().all(|&token| (token as usize) < vocabulary_size)).ok_or_else(
        || {
            Error::new(ErrorKind::Corrupt, "restore", "the snapshot's payload does not begin with its tokens")
                .with_context("bytes", snapshot.payload().len())
                .with_context("tokens", position)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_cache_come_back_and_tokens_that_cannot_be_are_noticed() {
        let of = |position, payload: Vec<u8>| Snapshot::new("mlx", "model", position, payload);
        let payload = encode(&[3, 700], vec![1, 2, 3]);
        assert_eq!(decode(&of(2, payload.clone()), 701).unwrap(), (vec![3, 700], vec![1, 2, 3]));
        assert_eq!(decode(&of(0, vec![]), 701).unwrap(), (vec![], vec![]));
        for (snapshot, vocabulary) in
            [(of(2, payload.clone()), 700), (of(3, payload.clone()), 701), (of(usize::MAX, payload), 701)]
        {
            assert_eq!(decode(&snapshot, vocabulary).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
