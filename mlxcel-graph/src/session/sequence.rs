//! A sequence: its tokens, and its state.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result, SequenceOptions, TokenId};
use mlxcel_models::Held;

use crate::executor::Executor;
use crate::shared::Shared;
use crate::state::StateLayout;

/// One sequence.
pub(super) struct Sequence<S> {
    /// How many tokens it holds.
    pub(super) position: usize,
    /// How many of them its states hold. The others are computed before its next tokens.
    pub(super) computed: usize,
    /// The tokens from `remembered` on: all where states may be computed again for the sequence's length, and
    /// elsewhere those that the states may lack once draft tokens are dropped.
    pub(super) tokens: Vec<TokenId>,
    /// The position of the first of `tokens`.
    pub(super) remembered: usize,
    /// The epoch in which its states were computed ([`RopeEpochs::at`](mlxcel_models::RopeEpochs::at)).
    pub(super) epoch: usize,
    /// What it was opened with: the adapter, which stays loaded as long as the sequence is open.
    pub(super) options: SequenceOptions,
    /// None until the first token.
    pub(super) states: Option<States<S>>,
    /// States from before draft tokens, where some cannot drop them.
    pub(super) kept: Option<Kept<S>>,
}

/// A state for each group of layers, and the length of the programs that they are for.
pub(super) struct States<S> {
    pub(super) groups: Vec<S>,
    pub(super) length: usize,
    /// How many positions have been written since they were allocated, including padding and rewound
    /// positions.
    pub(super) written: usize,
    /// In how many passes since their length last changed a shorter one would have done for this sequence.
    pub(super) spare: u32,
}

/// Copies of states that cannot drop draft tokens, as they were before those.
///
/// A recurrence cannot drop any, and a window no more than its ring has room for. So before draft tokens the
/// state is copied; when some are dropped the copy takes its place, and the tokens that were not are computed
/// again with the next row.
pub(super) struct Kept<S> {
    /// How many tokens they hold.
    pub(super) position: usize,
    /// A copy for each group; none of those that can drop the draft tokens.
    pub(super) groups: Vec<Option<S>>,
}

impl<S> Sequence<S> {
    pub(super) fn empty() -> Self {
        Self::with_options(&SequenceOptions::default())
    }

    pub(super) fn with_options(options: &SequenceOptions) -> Self {
        let (tokens, options) = (Vec::new(), options.clone());
        Self { position: 0, computed: 0, tokens, remembered: 0, epoch: 0, options, states: None, kept: None }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// How many positions its states hold, and the length of the programs that they are for.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.computed, self.states.as_ref().map_or(0, |states| states.length))
    }

    /// Discards what was computed in an epoch other than `epoch`.
    pub(super) fn enter(&mut self, epoch: usize) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.computed = 0;
            self.states = None;
            self.kept = None;
        }
    }

    pub(super) fn held(&self) -> Held {
        Held { position: self.position, computed: self.computed, epoch: self.epoch }
    }

    /// Its states hold `count` tokens more, of which `new` are the last; these are remembered where they
    /// `may_return`.
    pub(super) fn advance(&mut self, count: usize, new: &[TokenId], may_return: bool) {
        self.computed += count;
        self.position += new.len();
        if may_return {
            self.tokens.extend_from_slice(new);
        } else if self.computed == self.position {
            self.tokens.clear();
            self.remembered = self.position;
        }
    }

    /// The tokens at these positions, which its states lack.
    pub(super) fn lacking(&self, positions: Range<usize>) -> &[TokenId] {
        let places =
            positions.start.checked_sub(self.remembered).zip(positions.end.checked_sub(self.remembered));
        places.and_then(|(start, end)| self.tokens.get(start..end)).unwrap_or_default()
    }

    /// Forgets every token from `position` on, which it has passed. What caches hold behind it is masked until
    /// it is overwritten; other states go back to their copies.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where there are no copies from before `position`.
    pub(super) fn truncate(&mut self, position: usize) -> Result<()> {
        if position < self.computed {
            self.computed = match (&mut self.kept, &mut self.states) {
                (Some(kept), _) if kept.position > position => {
                    let message = "another row of the sequence followed its draft tokens";
                    return Err(Error::unsupported("rewind", message).with_context("position", position));
                }
                (Some(kept), Some(states)) => {
                    for (state, kept) in states.groups.iter_mut().zip(&mut kept.groups) {
                        if let Some(kept) = kept {
                            std::mem::swap(state, kept);
                        }
                    }
                    kept.position
                }
                _ => position,
            };
        }
        self.position = position;
        self.tokens.truncate(position.saturating_sub(self.remembered));
        Ok(())
    }

    /// A program is about to write the next `room` positions of its states, for which those of `least` would
    /// be long enough.
    pub(super) fn begin_writing(&mut self, room: usize, least: usize) {
        if let Some(states) = &mut self.states {
            states.written = states.written.max(self.computed + room);
            states.spare = if least < states.length { states.spare + 1 } else { 0 };
        }
    }
}

impl<E> Shared<E> {
    /// The least length whose states have room for `positions`; there is one for every position within the
    /// capacity and its chunk.
    pub(super) fn length_for(&self, operation: &'static str, positions: usize) -> Result<usize> {
        self.lengths.holding(self.bound.map_or(positions, |bound| bound.min(positions))).ok_or_else(|| {
            Error::new(ErrorKind::Internal, operation, "no KV-length bucket holds these positions")
                .with_context("positions", positions)
        })
    }
}

impl<E: Executor> Shared<E> {
    /// Whether sequences remember tokens, to compute states again.
    pub(super) fn remembers(&self) -> bool {
        self.epochs.depend_on_length() || !self.capabilities.rewind
    }

    /// Prepares `sequence` for a row with this many draft tokens: copies the states that cannot drop them.
    /// After an error the sequence is as it was, but draft tokens of an earlier row can no longer be dropped.
    pub(super) fn keep(&self, sequence: &mut Sequence<E::State>, drafts: usize) -> Result<()> {
        if !self.epochs.depend_on_length() {
            let passed = sequence.computed.saturating_sub(sequence.remembered);
            sequence.tokens.drain(..passed.min(sequence.tokens.len()));
            sequence.remembered = sequence.computed;
        }
        // Padding is written too.
        let written = drafts + self.chunks.most_verified();
        let Some(States { groups, length, .. }) = &sequence.states else { return Ok(()) };
        if self.layouts.iter().all(|layout| layout.outlasts(written)) {
            sequence.kept = None;
            return Ok(());
        }
        let kept = sequence.kept.get_or_insert_with(|| Kept { position: 0, groups: Vec::new() });
        kept.position = sequence.computed;
        kept.groups.resize_with(groups.len(), || None);
        for ((layout, state), copy) in self.layouts.iter().zip(groups).zip(&mut kept.groups) {
            if layout.outlasts(written) {
                *copy = None;
                continue;
            }
            let mut to = copy.take().map_or_else(|| self.executor.allocate(layout, *length), Ok)?;
            self.executor.copy(layout, (state, *length), (&mut to, *length), sequence.computed)?;
            *copy = Some(to);
        }
        Ok(())
    }

    /// New states for programs of `length` that hold what `sequence` has computed.
    pub(super) fn copied_states(
        &self,
        sequence: &Sequence<E::State>,
        length: usize,
    ) -> Result<States<E::State>> {
        let groups = self.layouts.iter().enumerate().map(|(group, layout)| {
            let from = sequence.states.as_ref().map(|states| (&states.groups[group], states.length));
            self.copied_state(layout, from, length, sequence.computed)
        });
        let groups = groups.collect::<Result<_>>()?;
        Ok(States { groups, length, written: sequence.computed, spare: 0 })
    }

    /// Makes the states of `sequence` fit programs of `length`, which has room for it, and with them the
    /// copies from before its draft tokens: a row with many of those takes several passes, whose lengths may
    /// differ. Those whose size is another then are copied; the others stay.
    /// After an error all are as they were.
    pub(super) fn resize(&self, sequence: &mut Sequence<E::State>, length: usize) -> Result<()> {
        let Sequence { computed, states: Some(states), kept, .. } = sequence else {
            sequence.states = Some(self.copied_states(sequence, length)?);
            return Ok(());
        };
        let old = states.length;
        if old == length {
            return Ok(());
        }
        let mut resized = Vec::new();
        for (group, layout) in self.layouts.iter().enumerate() {
            if layout.room(old) == layout.room(length) {
                continue;
            }
            let copied = |from, positions| self.copied_state(layout, Some((from, old)), length, positions);
            let state = copied(&states.groups[group], *computed)?;
            let copy =
                kept.as_ref().and_then(|kept| Some((kept.groups.get(group)?.as_ref()?, kept.position)));
            let copy = copy.map(|(copy, position)| copied(copy, position)).transpose()?;
            resized.push((group, state, copy));
        }
        (states.length, states.spare) = (length, 0);
        for (group, state, copy) in resized {
            states.groups[group] = state;
            if let Some(kept) = kept {
                kept.groups[group] = copy;
            }
        }
        Ok(())
    }

    /// A state for programs of `length` with the first `positions` of `from`, which is given with its length.
    fn copied_state(
        &self,
        layout: &StateLayout,
        from: Option<(&E::State, usize)>,
        length: usize,
        positions: usize,
    ) -> Result<E::State> {
        let mut state = self.executor.allocate(layout, length)?;
        if let Some(from) = from {
            self.executor.copy(layout, from, (&mut state, length), positions)?;
        }
        Ok(state)
    }
}
