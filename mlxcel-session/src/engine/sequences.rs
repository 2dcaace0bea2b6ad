//! Opens and closes the sequences of requests, and reuses computed prefixes among them.

use mlxcel_core::{InferenceSession, Result, SequenceId, SequenceOptions, TokenId};

use super::queue::Entry;
use super::scheduler::{Running, Scheduler};
use crate::prefix::common;

/// The shortest common beginning that is worth a copy of a sequence.
const LEAST_SHARED: usize = 16;

impl Scheduler {
    /// Opens a sequence for a request, and says how many of its tokens it holds already: out of the prefix
    /// cache, or as a copy of a running request's sequence, whichever saves more.
    pub(super) fn open_for(&mut self, entry: &Entry) -> Result<(SequenceId, usize)> {
        let (tokens, options) = (entry.generation.tokens().tokens(), entry.generation.sequence_options());
        let (opened, known) = entry.generation.open(&self.model, &mut *self.session)?;
        let Some((donor, common)) = self.donor(tokens, options).filter(|&(_, common)| common > known) else {
            return Ok((opened, known));
        };
        self.close(opened);
        match self.session.fork(donor) {
            Ok(sequence) => {
                if let Err(error) = self.session.rewind(sequence, common) {
                    self.close(sequence);
                    return Err(error);
                }
                Ok((sequence, common))
            }
            Err(error) => {
                tracing::debug!(%error, "a sequence was not copied");
                Ok((self.session.open_with(options)?, 0))
            }
        }
    }

    /// The running request with these `options` that holds the longest beginning of `tokens`, and how many
    /// these are.
    fn donor(&self, tokens: &[TokenId], options: &SequenceOptions) -> Option<(SequenceId, usize)> {
        if !self.copies {
            return None;
        }
        let held = |request: &Running| {
            let generation = request.entry.generation.tokens();
            let held = &generation.tokens()[..generation.computed()];
            (request.sequence, common(held, tokens).min(tokens.len().saturating_sub(1)))
        };
        let same = |request: &&Running| request.entry.generation.sequence_options() == options;
        self.running
            .iter()
            .filter(same)
            .map(held)
            .filter(|&(_, tokens)| tokens >= LEAST_SHARED)
            .max_by_key(|&(_, n)| n)
    }

    /// Whether a running request is about to compute a beginning of the prompt of `entry` that is longer than
    /// a chunk: then it is quicker to wait for that and copy it. Not for one of a lower priority, which may
    /// have to wait for others itself.
    pub(super) fn is_being_computed(&self, entry: &Entry) -> bool {
        let wanted = entry.generation.tokens().tokens();
        self.copies
            && self.running.iter().any(|request| {
                let generation = request.entry.generation.tokens();
                let (prompt, computed) = (generation.prompt_length(), generation.computed());
                let least = computed.saturating_add(self.limits.chunk.max(LEAST_SHARED));
                prompt >= least
                    && request.entry.priority >= entry.priority
                    && request.entry.generation.sequence_options() == entry.generation.sequence_options()
                    && !request.is_paused()
                    && common(&generation.tokens()[..prompt], wanted).min(wanted.len() - 1) >= least
            })
    }

    /// Takes a sequence from its request, and keeps what it holds for later ones.
    pub(super) fn give_up(&mut self, sequence: SequenceId, entry: &Entry) {
        entry.generation.keep(&self.model, &mut *self.session, sequence);
        self.close(sequence);
    }

    /// Stores the prefix that the request at `index` has computed, if it has reached its branch point.
    pub(super) fn keep_branch(&mut self, index: usize) {
        let Running { entry, sequence, branch, .. } = &mut self.running[index];
        if *branch == Some(entry.generation.tokens().computed()) {
            *branch = None;
            entry.generation.keep(&self.model, &mut *self.session, *sequence);
        }
    }

    /// Closes a sequence that is open.
    pub(super) fn close(&mut self, sequence: SequenceId) {
        if let Err(error) = self.session.close(sequence) {
            tracing::warn!(%sequence, %error, "a sequence was not closed");
        }
    }
}

/// Whether `session` copies the beginnings of sequences.
pub(super) fn copies(session: &dyn InferenceSession) -> bool {
    session.capabilities().fork && session.capabilities().rewind
}
