//! Computed prefixes of one model, looked up by their tokens.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use mlxcel_core::{Snapshot, TokenId};

/// The state of a sequence after some tokens.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) snapshot: Arc<Snapshot>,
    /// When it was used last, in the cache's own count.
    pub(super) used: u64,
}

impl Entry {
    /// The memory that an entry takes under a key of `tokens`.
    pub(super) fn bytes(&self, tokens: &[TokenId]) -> u64 {
        (self.snapshot.payload().len() + size_of_val(tokens)) as u64
    }
}

/// Entries ordered by their tokens, so that those that share a prefix stand side by side: the order of a
/// depth-first walk of the tree of all prefixes.
pub(super) type Map = BTreeMap<Vec<TokenId>, Entry>;

/// The entry that has the most first tokens in common with `tokens`, and how many: it is next to where
/// `tokens` would stand.
pub(super) fn nearest<'a>(map: &'a Map, tokens: &[TokenId]) -> Option<(usize, &'a [TokenId])> {
    let before = map.range::<[TokenId], _>((Bound::Unbounded, Bound::Included(tokens))).next_back();
    let after = map.range::<[TokenId], _>((Bound::Excluded(tokens), Bound::Unbounded)).next();
    let shared = |(key, _): (&'_ Vec<TokenId>, _)| common(key, tokens);
    let (left, right) = (before.map_or(0, shared), after.map_or(0, shared));
    let (length, nearest) = if left >= right { (left, before) } else { (right, after) };
    nearest.filter(|_| length > 0).map(|(key, _)| (length, key.as_slice()))
}

/// The longest entry that `tokens` begin with.
pub(super) fn longest_prefix<'a>(map: &'a Map, mut tokens: &[TokenId]) -> Option<&'a [TokenId]> {
    loop {
        let (key, _) = map.range::<[TokenId], _>((Bound::Unbounded, Bound::Included(tokens))).next_back()?;
        // Where the entry before is none of its prefixes, all of them are shorter than what the two share.
        match common(key, tokens) {
            length if length == key.len() => return Some(key),
            length => tokens = &tokens[..length],
        }
    }
}

/// The entry that was not used for the longest time, and when it was.
pub(super) fn oldest(map: &Map) -> Option<(u64, &[TokenId])> {
    map.iter().map(|(tokens, entry)| (entry.used, tokens.as_slice())).min()
}

/// How many first tokens two lists share.
pub(crate) fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{ModelInfo, StateIdentity};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_map_agrees_with_a_linear_search(
            keys in proptest::collection::btree_set(proptest::collection::vec(0u32..3, 1..6), 0..20),
            wanted in proptest::collection::vec(0u32..3, 1..7),
        ) {
            let identity = StateIdentity::of(&ModelInfo::new("test", "llama", 3));
            let mut map = Map::default();
            for key in &keys {
                let snapshot = Arc::new(Snapshot::new(identity.clone(), key.len(), []));
                map.insert(key.clone(), Entry { snapshot, used: 0 });
            }
            let most = keys.iter().map(|key| common(key, &wanted)).max().filter(|&most| most > 0);
            let nearest = nearest(&map, &wanted);
            prop_assert_eq!(nearest.map(|(length, _)| length), most);
            prop_assert!(nearest.is_none_or(|(length, key)| common(key, &wanted) == length));
            let longest = keys.iter().filter(|key| wanted.starts_with(key)).max_by_key(|key| key.len());
            prop_assert_eq!(longest_prefix(&map, &wanted), longest.map(Vec::as_slice));
        }
    }
}
