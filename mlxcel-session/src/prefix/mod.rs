//! The prefix cache: requests with a common prefix share its KV cache.

mod disk;
mod map;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{
    ErrorKind, InferenceSession, ModelInfo, Result, SequenceId, SequenceOptions, Snapshot, StateIdentity,
    TokenId,
};

use crate::sync::{Mutex, MutexGuard, unpoisoned};
pub(crate) use map::common;
use map::{Entry, Map, longest_prefix, nearest, oldest};

/// The shortest prefix that is worth a copy.
const LEAST_TOKENS: usize = 16;

/// A cache of computed prompt prefixes, shared by its clones: a request with the prefix of an earlier one
/// reuses its KV cache and computes only the remainder.
///
/// Entries are [snapshots](InferenceSession::snapshot) in memory, looked up by their tokens. If the engine
/// claims [`rewind`](mlxcel_core::Capabilities::rewind), any common prefix is reused. Without it (sliding
/// windows, recurrent layers) an entry is reused only if all its tokens are a prefix of the prompt; when a
/// prompt diverges from an entry, a snapshot is taken at that position for the next one. Reuse does not
/// change the generated tokens. An engine without [`snapshot`](mlxcel_core::Capabilities::snapshot) reuses
/// nothing.
///
/// The entries never exceed the budget: the least recently used one is evicted first. Entries are bound to a
/// [`StateIdentity`]: engine, weights, precision and adapter; one cache may serve several models.
///
/// ```no_run
/// use mlxcel_session::{Model, Options, PrefixCache};
///
/// let model = Model::open("models/llama")?.with_prefix_cache(PrefixCache::new(1 << 30));
/// let instructions = std::fs::read_to_string("instructions.txt").unwrap_or_default();
/// for question in ["What is a lichen?", "What is a moss?"] {
///     let answer = model.generate(&format!("{instructions}\n\n{question}"), &Options::default())?.complete()?;
///     println!("{} ({} tokens reused)", answer.text, answer.usage.reused_tokens);
/// }
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone)]
pub struct PrefixCache(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    budget: u64,
    /// By what their states belong to.
    maps: BTreeMap<StateIdentity, Map>,
    bytes: u64,
    clock: u64,
    stats: PrefixStats,
}

/// Statistics of a [`PrefixCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStats {
    /// The number of entries.
    pub entries: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// How often a prompt had a cached prefix.
    pub hits: u64,
    /// How often a prompt had none.
    pub misses: u64,
    /// How many tokens were reused instead of computed.
    pub reused_tokens: u64,
}

impl PrefixCache {
    /// An empty cache of at most `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner { budget, ..Inner::default() })))
    }

    /// Statistics of the cache.
    pub fn stats(&self) -> PrefixStats {
        let inner = self.lock();
        let entries = inner.maps.values().map(BTreeMap::len).sum();
        PrefixStats { entries, bytes: inner.bytes, ..inner.stats }
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.maps.clear();
        inner.bytes = 0;
    }

    /// Opens a sequence of `session` with these `options` and the longest cached prefix of `tokens` that was
    /// computed with the same adapter, and returns its length. The last token is never included, since
    /// its result is needed.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::open_with`]. An entry that the engine rejects is removed.
    pub fn open_sequence<S: InferenceSession + ?Sized>(
        &self,
        info: &ModelInfo,
        session: &mut S,
        options: &SequenceOptions,
        tokens: &[TokenId],
    ) -> Result<(SequenceId, usize)> {
        let identity = StateIdentity::of_sequence(info, options);
        let capabilities = session.capabilities();
        if capabilities.snapshot {
            let rewind = capabilities.rewind;
            while let Some((key, length, snapshot)) = self.find(&identity, tokens, rewind) {
                match restore(session, &snapshot, options, length) {
                    Ok(sequence) => {
                        let mut inner = self.lock();
                        inner.stats.hits += 1;
                        inner.stats.reused_tokens += length as u64;
                        return Ok((sequence, length));
                    }
                    // It was damaged on disk.
                    Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Corrupt) => {
                        tracing::debug!(%error, "forget a prefix");
                        self.lock().remove(&identity, &key);
                    }
                    Err(error) => return Err(error),
                }
            }
            self.lock().stats.misses += 1;
        }
        Ok((session.open_with(options)?, 0))
    }

    /// Stores a snapshot of `sequence`, which was opened with `options` and holds `tokens`, if it is new and
    /// fits into the budget. Returns whether it was stored.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::snapshot`].
    pub fn keep<S: InferenceSession + ?Sized>(
        &self,
        info: &ModelInfo,
        session: &mut S,
        sequence: SequenceId,
        options: &SequenceOptions,
        tokens: &[TokenId],
    ) -> Result<bool> {
        let identity = StateIdentity::of_sequence(info, options);
        let (snapshot, rewind) = (session.capabilities().snapshot, session.capabilities().rewind);
        if !snapshot || tokens.len() < LEAST_TOKENS || self.covers(&identity, tokens, rewind) {
            return Ok(false);
        }
        let state = session.state(sequence)?;
        if state.poisoned || state.position != tokens.len() {
            return Ok(false);
        }
        let snapshot = session.snapshot(sequence)?;
        Ok(self.lock().insert(&identity, tokens.to_vec(), snapshot, rewind))
    }

    /// Where the computation of `tokens` should rest for a [`keep`](Self::keep): where they leave a text that
    /// is known, and the engine can reuse whole states only.
    pub(crate) fn branch(&self, identity: &StateIdentity, tokens: &[TokenId], rewind: bool) -> Option<usize> {
        let inner = self.lock();
        let map = inner.maps.get(identity).filter(|_| !rewind)?;
        let most = tokens.len().checked_sub(1)?;
        let shared = nearest(map, tokens)?.0.min(most);
        let known = longest_prefix(map, &tokens[..most]).map_or(0, <[TokenId]>::len);
        (shared >= LEAST_TOKENS && shared > known).then_some(shared)
    }

    /// Writes the entries into `folder`, each atomically, and removes older files of the same models.
    ///
    /// The files contain the KV caches, and so the contents, of prompts and answers; only the current user
    /// can read them.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn save(&self, folder: &Path) -> Result<()> {
        // Written without the lock, so that no thread waits for the disk.
        let maps = self.lock().maps.clone();
        maps.iter().try_for_each(|(identity, entries)| disk::write(folder, identity, entries))
    }

    /// Reads entries that [`save`](Self::save) wrote into `folder` for the model of `info`, up to the budget,
    /// and returns their number. Damaged files and those of another version are skipped.
    ///
    /// # Errors
    ///
    /// Errors of the file system; a missing folder is not an error.
    pub fn load(&self, info: &ModelInfo, folder: &Path) -> Result<usize> {
        let (identity, budget) = (StateIdentity::of(info), self.lock().budget);
        let entries = disk::read(folder, &identity, budget)?;
        let mut inner = self.lock();
        let mut taken = 0;
        for (tokens, snapshot) in entries {
            taken += usize::from(inner.insert(&identity, tokens, snapshot, false));
        }
        Ok(taken)
    }

    /// The entry that saves the most of `tokens`, and how many.
    fn find(
        &self,
        identity: &StateIdentity,
        tokens: &[TokenId],
        rewind: bool,
    ) -> Option<(Vec<TokenId>, usize, Arc<Snapshot>)> {
        let most = tokens.len().checked_sub(1)?;
        let mut inner = self.lock();
        let map = inner.maps.get(identity)?;
        let (length, key) = if rewind {
            nearest(map, tokens).map(|(length, key)| (length.min(most), key.to_vec()))?
        } else {
            longest_prefix(map, &tokens[..most]).map(|key| (key.len(), key.to_vec()))?
        };
        if length < LEAST_TOKENS {
            return None;
        }
        let snapshot = inner.touch(identity, &key)?.snapshot.clone();
        Some((key, length, snapshot))
    }

    /// Whether an entry serves every prompt that one of `tokens` would serve.
    fn covers(&self, identity: &StateIdentity, tokens: &[TokenId], rewind: bool) -> bool {
        let mut inner = self.lock();
        let nearest = inner.maps.get(identity).and_then(|map| nearest(map, tokens));
        let serves = |key: &[TokenId], length| length == tokens.len() && (rewind || key.len() == length);
        let key = nearest.filter(|&(length, key)| serves(key, length)).map(|(_, key)| key.to_vec());
        key.is_some_and(|key| inner.touch(identity, &key).is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        unpoisoned(self.0.lock())
    }
}

impl Inner {
    /// Puts an entry in, after as many of the least recently used as must go for it. False where it is larger
    /// than the budget.
    fn insert(
        &mut self,
        identity: &StateIdentity,
        tokens: Vec<TokenId>,
        snapshot: Snapshot,
        rewind: bool,
    ) -> bool {
        self.clock += 1;
        let entry = Entry { snapshot: Arc::new(snapshot), used: self.clock };
        let bytes = entry.bytes(&tokens);
        if bytes > self.budget {
            return false;
        }
        self.remove(identity, &tokens);
        // The longer one serves whom they served.
        while let Some(shorter) =
            self.maps.get(identity).filter(|_| rewind).and_then(|map| longest_prefix(map, &tokens))
        {
            let shorter = shorter.to_vec();
            self.remove(identity, &shorter);
        }
        while self.bytes + bytes > self.budget {
            let least_recent =
                self.maps.iter().filter_map(|(identity, map)| Some((oldest(map)?, identity))).min();
            let Some(((_, tokens), identity)) = least_recent else { break };
            let (identity, tokens) = (identity.clone(), tokens.to_vec());
            self.remove(&identity, &tokens);
        }
        self.bytes += bytes;
        self.maps.entry(identity.clone()).or_default().insert(tokens, entry);
        true
    }

    /// The entry of exactly `tokens`, which is used now.
    fn touch(&mut self, identity: &StateIdentity, tokens: &[TokenId]) -> Option<&Entry> {
        self.clock += 1;
        let entry = self.maps.get_mut(identity)?.get_mut(tokens)?;
        entry.used = self.clock;
        Some(entry)
    }

    fn remove(&mut self, identity: &StateIdentity, tokens: &[TokenId]) {
        if let Some(entry) = self.maps.get_mut(identity).and_then(|map| map.remove(tokens)) {
            self.bytes -= entry.bytes(tokens);
        }
    }
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The lock is given back before the statistics take it.
        let budget = self.lock().budget;
        f.debug_struct("PrefixCache").field("budget", &budget).field("stats", &self.stats()).finish()
    }
}

/// Opens a sequence of the first `length` tokens of `snapshot`.
fn restore<S: InferenceSession + ?Sized>(
    session: &mut S,
    snapshot: &Snapshot,
    options: &SequenceOptions,
    length: usize,
) -> Result<SequenceId> {
    let sequence = session.restore_with(snapshot, options)?;
    if length < snapshot.position()
        && let Err(error) = session.rewind(sequence, length)
    {
        session.close(sequence)?;
        return Err(error);
    }
    Ok(sequence)
}

#[cfg(test)]
mod tests;
