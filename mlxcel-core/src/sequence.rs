//! Sequences: their ids, their options and their states.

use std::fmt;

use crate::adapter::Adapter;
use crate::capabilities::Capabilities;
use crate::error::Result;

/// The id of a sequence of one session. Ids are never reused within a session, so stale ones are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u64);

impl SequenceId {
    /// For engines: the sequence with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Options of [`InferenceSession::open_with`](crate::InferenceSession::open_with); start from
/// [`SequenceOptions::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceOptions {
    /// The adapter that all tokens of the sequence are computed with. Forks and snapshots keep it, and its
    /// identity is part of their [`StateIdentity`](crate::StateIdentity). Needs
    /// [`Capabilities::adapters`]. Defaults to none.
    pub adapter: Option<Adapter>,
}

impl SequenceOptions {
    setters! {
        /// Sets the adapter.
        with_adapter(adapter: &Adapter) => adapter = Some(adapter.clone());
    }

    /// An error for an adapter, which an engine without adapters does not have.
    pub(crate) fn refuse_adapter(&self, operation: &'static str) -> Result<()> {
        match &self.adapter {
            None => Ok(()),
            Some(adapter) => Err(Capabilities::unclaimed(operation, "adapters")
                .with_context("adapter", adapter.identity().escape_debug())),
        }
    }
}

/// The state of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceState {
    /// The number of tokens it holds, which is the position of the next token.
    pub position: usize,
    /// The maximum number of tokens.
    pub capacity: usize,
    /// Whether a device fault left it in an unknown state; it can only be closed.
    pub poisoned: bool,
}

impl SequenceState {
    /// A healthy sequence of `position` tokens out of `capacity`.
    pub fn new(position: usize, capacity: usize) -> Self {
        Self { position, capacity, poisoned: false }
    }

    /// How many more tokens it may hold.
    pub fn remaining(&self) -> usize {
        self.capacity.saturating_sub(self.position)
    }
}
