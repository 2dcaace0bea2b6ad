//! Bookkeeping of a session: the open sequences, and the progress of a step's rows.

mod check;
mod rows;

use std::collections::BTreeMap;

pub use rows::{StepRow, StepRows};

use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::StateIdentity;
use crate::sequence::{SequenceId, SequenceState};
use crate::snapshot::Snapshot;
use crate::step::{Row, RowResult, StepOutput};

/// For engines: the sequences of a session, each with the engine's state `S`, such as its KV cache or a
/// handle of it.
///
/// The table assigns ids that are never reused, enforces [`Capabilities::sequences`] and
/// [`Capabilities::context`], and returns the contract's errors: [`ErrorKind::NotFound`],
/// [`ErrorKind::Poisoned`], [`ErrorKind::CapacityExceeded`]. Poisoning a sequence removes its `S`, so that it
/// cannot be used by mistake.
///
/// A session without a real model, whose sequences keep their tokens as state:
///
/// ```
/// use mlxcel_core::{
///     Capabilities, Control, Result, Row, RowResult, SequenceId, SequenceTable, StepOutput, StepRows, TokenId,
/// };
///
/// fn step(
///     table: &mut SequenceTable<Vec<TokenId>>,
///     rows: &[Row<'_>],
///     control: &Control<'_>,
///     out: &mut StepOutput,
/// ) -> Result<()> {
///     let mut rows: StepRows<'_> = table.begin(rows, out)?;
///     while rows.wait(control) {
///         // A pass: here the next eight tokens of every row that waits.
///         for row in rows.iter_mut().filter(|row| row.is_waiting()) {
///             let count = row.remaining().min(8);
///             table.get_mut("step", row.sequence())?.extend_from_slice(row.next(count));
///             table.absorb(row, count, Ok(RowResult::Extended));
///         }
///     }
///     rows.finish(out);
///     Ok(())
/// }
///
/// let mut table = SequenceTable::new(Capabilities::new(2, 20), 100, Vec::len);
/// let first = table.open("open sequence", Vec::new())?;
/// let rows = [Row::extend(first, &[5; 12]), Row::extend(SequenceId::new(7), &[5])];
/// let mut out = StepOutput::new();
/// step(&mut table, &rows, &Control::default(), &mut out)?;
/// assert!(matches!(out.rows()[0], Ok(RowResult::Extended)));
/// assert!(out.rows()[1].is_err(), "there is no such sequence");
/// assert_eq!(table.state(first)?.position, 12);
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Debug)]
pub struct SequenceTable<S> {
    capabilities: Capabilities,
    vocabulary_size: usize,
    position: fn(&S) -> usize,
    slots: BTreeMap<SequenceId, Slot<S>>,
    opened: u64,
}

#[derive(Debug)]
enum Slot<S> {
    Healthy {
        sequence: S,
        /// Where the draft tokens of its last row begin, if that had any to verify.
        drafts: Option<usize>,
    },
    /// Poisoned by a device fault at this position.
    Poisoned { position: usize },
}

impl<S> SequenceTable<S> {
    /// An empty table for a session with these capabilities and a vocabulary of this size. `position` returns
    /// the number of tokens of a sequence.
    pub fn new(capabilities: Capabilities, vocabulary_size: usize, position: fn(&S) -> usize) -> Self {
        Self { capabilities, vocabulary_size, position, slots: BTreeMap::new(), opened: 0 }
    }

    /// The session's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Opens a sequence.
    ///
    /// # Errors
    ///
    /// The errors of [`check_room`](Self::check_room).
    pub fn open(&mut self, operation: &'static str, sequence: S) -> Result<SequenceId> {
        self.check_room(operation)?;
        let id = SequenceId::new(self.opened);
        self.opened += 1;
        self.slots.insert(id, Slot::Healthy { sequence, drafts: None });
        Ok(id)
    }

    /// Checks that another sequence can be opened, for engines that do work before they open it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CapacityExceeded`] if the maximum number is open.
    pub fn check_room(&self, operation: &'static str) -> Result<()> {
        if self.slots.len() < self.capabilities.sequences {
            return Ok(());
        }
        let message = "the session has no room for another sequence; close one";
        Err(Error::new(ErrorKind::CapacityExceeded, operation, message)
            .with_context("sequences", self.capabilities.sequences))
    }

    /// Closes a sequence and returns the engine's state; `None` if it was poisoned.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`].
    pub fn close(&mut self, id: SequenceId) -> Result<Option<S>> {
        match self.slots.remove(&id) {
            Some(Slot::Healthy { sequence, .. }) => Ok(Some(sequence)),
            Some(Slot::Poisoned { .. }) => Ok(None),
            None => Err(not_found("close sequence", id)),
        }
    }

    /// The state of a sequence, also of a poisoned one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`].
    pub fn state(&self, id: SequenceId) -> Result<SequenceState> {
        self.state_of(id).ok_or_else(|| not_found("read state", id))
    }

    fn state_of(&self, id: SequenceId) -> Option<SequenceState> {
        let (position, poisoned) = match self.slots.get(&id)? {
            Slot::Healthy { sequence, .. } => ((self.position)(sequence), false),
            Slot::Poisoned { position } => (*position, true),
        };
        let mut state = SequenceState::new(position, self.capabilities.context);
        state.poisoned = poisoned;
        Some(state)
    }

    /// The engine's state of a healthy sequence.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`].
    pub fn get(&self, operation: &'static str, id: SequenceId) -> Result<&S> {
        match self.slots.get(&id) {
            Some(Slot::Healthy { sequence, .. }) => Ok(sequence),
            Some(Slot::Poisoned { .. }) => Err(poisoned(operation, id)),
            None => Err(not_found(operation, id)),
        }
    }

    /// The engine's state of a healthy sequence.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get).
    pub fn get_mut(&mut self, operation: &'static str, id: SequenceId) -> Result<&mut S> {
        healthy(self.slots.get_mut(&id), operation, id)
    }

    /// The engine's states of several sequences, in the order of `ids`.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get) of each; [`ErrorKind::NotFound`] for a duplicate.
    pub fn get_all_mut(
        &mut self,
        operation: &'static str,
        ids: impl IntoIterator<Item = SequenceId>,
    ) -> Result<Vec<&mut S>> {
        let mut slots: BTreeMap<SequenceId, &mut Slot<S>> =
            self.slots.iter_mut().map(|(&id, slot)| (id, slot)).collect();
        let mut taken = Vec::new();
        for id in ids {
            taken.push(healthy(slots.remove(&id), operation, id)?);
        }
        Ok(taken)
    }

    /// The engine's states of the healthy sequences, in the order in which they were opened.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.slots.values().filter_map(|slot| match slot {
            Slot::Healthy { sequence, .. } => Some(sequence),
            Slot::Poisoned { .. } => None,
        })
    }

    /// Poisons a sequence, so that it can only be closed, and returns the engine's state.
    pub fn poison(&mut self, id: SequenceId) -> Option<S> {
        let position = self.state_of(id)?.position;
        match self.slots.insert(id, Slot::Poisoned { position })? {
            Slot::Healthy { sequence, .. } => Some(sequence),
            Slot::Poisoned { .. } => None,
        }
    }

    /// Checks a rewind to `position` and returns the engine's state. A session that does not claim
    /// [`Capabilities::rewind`] is rewound within the draft tokens of a sequence's last row, and nowhere else.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::rewind`](crate::InferenceSession::rewind).
    pub fn for_rewind(&mut self, id: SequenceId, position: usize) -> Result<&mut S> {
        let Self { capabilities, position: held, slots, .. } = self;
        let claimed = |claimed| Capabilities::require(claimed, "rewind", "rewind");
        claimed(capabilities.rewind || capabilities.verification)?;
        let slot = slots.get_mut(&id);
        let drafts = match &slot {
            Some(Slot::Healthy { drafts, .. }) => *drafts,
            _ => None,
        };
        let sequence = healthy(slot, "rewind", id)?;
        claimed(capabilities.rewind || drafts.is_some_and(|begin| begin <= position))?;
        let tokens = held(sequence);
        if position > tokens {
            return Err(Error::new(ErrorKind::InvalidInput, "rewind", "the sequence is shorter than that")
                .with_context("position", position)
                .with_context("tokens", tokens));
        }
        Ok(sequence)
    }

    /// Checks that a sequence can be forked and returns the engine's state.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::fork`](crate::InferenceSession::fork) that precede any work.
    pub fn for_fork(&self, id: SequenceId) -> Result<&S> {
        Capabilities::require(self.capabilities.fork, "fork", "fork")?;
        let sequence = self.get("fork", id)?;
        self.check_room("fork")?;
        Ok(sequence)
    }

    /// Checks that a snapshot can be taken and returns the engine's state.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::snapshot`](crate::InferenceSession::snapshot) that precede any work.
    pub fn for_snapshot(&self, id: SequenceId) -> Result<&S> {
        Capabilities::require(self.capabilities.snapshot, "snapshot", "snapshot")?;
        self.get("snapshot", id)
    }

    /// Checks that a snapshot can be restored for states of `identity`.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::restore`](crate::InferenceSession::restore) that precede reading the
    /// payload.
    pub fn check_restore(&self, snapshot: &Snapshot, identity: &StateIdentity) -> Result<()> {
        Capabilities::require(self.capabilities.snapshot, "restore", "snapshot")?;
        identity.check(snapshot.identity())?;
        self.check_room("restore")?;
        let (tokens, capacity) = (snapshot.position(), self.capabilities.context);
        if tokens > capacity {
            let message = "the snapshot is longer than this session's capacity";
            return Err(Error::new(ErrorKind::InvalidInput, "restore", message)
                .with_context("tokens", tokens)
                .with_context("capacity", capacity));
        }
        Ok(())
    }

    /// Begins a step: clears `out` and checks all rows before any work. Invalid rows get their error at once;
    /// see [`InferenceSession::step`](crate::InferenceSession::step) for the errors and their order. A
    /// waiting row is valid: its sequence is healthy and has no other row, its tokens are in the
    /// vocabulary and fit, its want is claimed, and if it wants a token, mask and biases leave at least
    /// one candidate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for no rows at all.
    pub fn begin<'r, W: Default>(&self, rows: &[Row<'r>], out: &mut StepOutput) -> Result<StepRows<'r, W>> {
        out.clear();
        let state = |id| self.state_of(id);
        Ok(StepRows::new(rows, check::check_rows(rows, &self.capabilities, self.vocabulary_size, state)?))
    }

    /// Adds the result of a pass over the next `count` tokens of a row, which its sequence holds by now; see
    /// [`StepRow::absorb`]. A result of [`ErrorKind::Device`] poisons the sequence, whose engine state is
    /// returned then.
    pub fn absorb<W>(
        &mut self,
        row: &mut StepRow<'_, W>,
        count: usize,
        result: Result<RowResult>,
    ) -> Option<S> {
        if let Some(Slot::Healthy { sequence, drafts }) = self.slots.get_mut(&row.sequence()) {
            let held = (self.position)(sequence);
            *drafts = row.first_draft(held.saturating_sub(count)).map(|first| first.min(held));
        }
        row.absorb(count, result);
        if row.is_fault() { self.poison(row.sequence()) } else { None }
    }

    /// Fails a row whose pass failed after the device had started, and poisons its sequence, whose engine
    /// state is returned. If the device had not started, use [`StepRow::fail`], which keeps the sequence
    /// usable.
    pub fn fault<W>(&mut self, row: &mut StepRow<'_, W>, error: Error) -> Option<S> {
        row.fail(error);
        self.poison(row.sequence())
    }
}

/// The engine's state in a slot.
fn healthy<'s, S>(
    slot: Option<&'s mut Slot<S>>,
    operation: &'static str,
    id: SequenceId,
) -> Result<&'s mut S> {
    match slot {
        Some(Slot::Healthy { sequence, .. }) => Ok(sequence),
        Some(Slot::Poisoned { .. }) => Err(poisoned(operation, id)),
        None => Err(not_found(operation, id)),
    }
}

fn not_found(operation: &'static str, id: SequenceId) -> Error {
    Error::new(ErrorKind::NotFound, operation, "the sequence is not open").with_context("sequence", id)
}

fn poisoned(operation: &'static str, id: SequenceId) -> Error {
    Error::new(
        ErrorKind::Poisoned,
        operation,
        "a device fault left this sequence in an unknown state; close it",
    )
    .with_context("sequence", id)
}

#[cfg(test)]
mod tests;
