//! Sessions: exclusive owners of sequences and their KV caches.

use std::fmt;
use std::time::Duration;

use crate::{
    Capabilities, Control, Error, ErrorKind, Result, Row, RowResult, SampledToken, SamplingPlan, Snapshot,
    StepOutput, TokenId,
};

/// A sequence of one session. Numbers are not used again within a session, so a stale one is noticed.
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

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceState {
    /// How many tokens it holds; the next token goes here.
    pub position: usize,
    /// The most that it may hold.
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

/// What a session has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Passes over the weights: dispatches of a whole program.
    pub passes: u64,
    /// Tokens computed; rewind, fork and restore add none.
    pub tokens: u64,
    /// Bytes sent to the device: token ids, positions. Weights do not count.
    pub uploaded_bytes: u64,
    /// Bytes read back from the device.
    pub read_back_bytes: u64,
    /// Bytes of memory that the states of the open sequences take now: KV caches, and what does not grow with positions. Room for
    /// positions that nobody wrote counts where it takes memory.
    pub kv_bytes: u64,
    /// Time spent compiling programs during steps.
    pub compile_time: Duration,
}

/// Sequences and their KV caches, advanced a step at a time by one owner.
///
/// # Contract
///
/// *For users*: open a sequence, feed it tokens by [`step`](Self::step) (or [`prefill`](Self::prefill) and
/// [`decode_step`](Self::decode_step)), close it. A session is used by one thread at a time, and may move between threads:
///
/// ```
/// # use mlxcel_core::{Model, SessionOptions, reference::ReferenceBackend};
/// let model = ReferenceBackend::new().model()?;
/// let mut session = model.open_session(&SessionOptions::default())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| session.open());
/// });
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// Two threads cannot drive it at once,
///
/// ```compile_fail,E0499
/// # use mlxcel_core::{Model, SessionOptions, reference::ReferenceBackend};
/// let model = ReferenceBackend::new().model()?;
/// let mut session = model.open_session(&SessionOptions::default())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| session.open());
///     scope.spawn(|| session.open());
/// });
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// nor can one look on while another owns it:
///
/// ```compile_fail,E0277
/// # use mlxcel_core::{Model, SessionOptions, reference::ReferenceBackend};
/// let model = ReferenceBackend::new().model()?;
/// let session = model.open_session(&SessionOptions::default())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| session.stats());
/// });
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// *For implementers*: a call that fails before work leaves everything as it was. Errors of a row stand in that row's
/// result and do not harm the others; `step` itself fails only where no row was touched. Whatever may have been half done by
/// a device fault is poisoned. Required are the methods without a body; the optional ones answer
/// [`ErrorKind::Unsupported`] unless implemented, and are claimed in the capabilities when they are.
pub trait InferenceSession: Send {
    /// What this session can do.
    fn capabilities(&self) -> &Capabilities;

    /// Opens an empty sequence.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CapacityExceeded`] where [`Capabilities::sequences`] are open.
    fn open(&mut self) -> Result<SequenceId>;

    /// Closes a sequence and frees what it held; a poisoned one too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where no such sequence is open.
    fn close(&mut self, sequence: SequenceId) -> Result<()>;

    /// Where a sequence stands.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where no such sequence is open.
    fn state(&self, sequence: SequenceId) -> Result<SequenceState>;

    /// Appends each row's tokens to its sequence and answers what the row wants, with one result a row in `out`.
    ///
    /// Rows may be any mixture of prompt chunks and decoding rows. Rows that fit into one pass over the weights share it. Between
    /// passes, `control` may stop all of the rows that are not done, and a row's own [`cancel`](Row::cancel) that row.
    ///
    /// # Errors
    ///
    /// Of the call: [`ErrorKind::InvalidInput`] for no rows at all. Of a row: [`ErrorKind::NotFound`] (no such sequence),
    /// [`ErrorKind::InvalidInput`] (no tokens, a token beyond the vocabulary, a second row of one sequence),
    /// [`ErrorKind::CapacityExceeded`] (before any work), [`ErrorKind::Unsupported`] (a want that is not claimed),
    /// [`ErrorKind::Poisoned`], [`ErrorKind::Cancelled`], [`ErrorKind::Device`].
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()>;

    /// What the session has done.
    fn stats(&self) -> SessionStats;

    /// Appends `tokens` to a sequence and gives the result of that one row: a prompt, or a chunk of it.
    ///
    /// # Errors
    ///
    /// Those of [`step`](Self::step), of the call and of the row.
    fn prefill(&mut self, row: Row<'_>, control: &Control<'_>) -> Result<RowResult> {
        let mut out = StepOutput::new();
        self.step(&[row], control, &mut out)?;
        out.take_only("prefill")
    }

    /// Appends one token to each sequence and gives the token that follows it, for all in one step.
    ///
    /// # Errors
    ///
    /// Those of [`step`](Self::step).
    fn decode_step(
        &mut self,
        rows: &[(SequenceId, TokenId)],
        plan: &SamplingPlan,
        control: &Control<'_>,
    ) -> Result<Vec<Result<SampledToken>>> {
        let tokens: Vec<[TokenId; 1]> = rows.iter().map(|&(_, token)| [token]).collect();
        let rows: Vec<Row<'_>> = rows
            .iter()
            .zip(&tokens)
            .map(|(&(sequence, _), token)| Row::next(sequence, token, plan))
            .collect();
        let mut out = StepOutput::new();
        self.step(&rows, control, &mut out)?;
        Ok(out.take().into_iter().map(|row| row.and_then(expect_token)).collect())
    }

    /// Forgets every token from `position` on; computes none. Needs [`Capabilities::rewind`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`]; [`ErrorKind::InvalidInput`] where the
    /// sequence is shorter.
    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        let _ = (sequence, position);
        Err(Capabilities::unclaimed("rewind", "rewind"))
    }

    /// Opens a second sequence with the same tokens; computes none. Needs [`Capabilities::fork`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`], and those of [`open`](Self::open).
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let _ = sequence;
        Err(Capabilities::unclaimed("fork", "fork"))
    }

    /// Takes a copy of a sequence out of the session; computes nothing. Needs [`Capabilities::snapshot`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`].
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let _ = sequence;
        Err(Capabilities::unclaimed("snapshot", "snapshot"))
    }

    /// Opens a sequence as a snapshot of this model by this engine holds it; computes nothing. Needs
    /// [`Capabilities::snapshot`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`]; [`ErrorKind::InvalidInput`] for a snapshot of another engine or model or a longer one than
    /// this session's capacity; [`ErrorKind::Corrupt`]; and those of [`open`](Self::open).
    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        let _ = snapshot;
        Err(Capabilities::unclaimed("restore", "snapshot"))
    }
}

/// The token that a row wanting one was answered with.
pub(crate) fn expect_token(result: RowResult) -> Result<SampledToken> {
    match result {
        RowResult::Token(token) => Ok(token),
        _ => Err(Error::new(
            ErrorKind::Internal,
            "decode",
            "the engine answered with something else than a token",
        )),
    }
}

macro_rules! forward {
    ($($target:ty),*) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<S: InferenceSession + ?Sized> InferenceSession for $target {
            fn capabilities(&self) -> &Capabilities {
                (**self).capabilities()
            }
            fn open(&mut self) -> Result<SequenceId> {
                (**self).open()
            }
            fn close(&mut self, sequence: SequenceId) -> Result<()> {
                (**self).close(sequence)
            }
            fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
                (**self).state(sequence)
            }
            fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
                (**self).step(rows, control, out)
            }
            fn stats(&self) -> SessionStats {
                (**self).stats()
            }
            fn prefill(&mut self, row: Row<'_>, control: &Control<'_>) -> Result<RowResult> {
                (**self).prefill(row, control)
            }
            fn decode_step(
                &mut self,
                rows: &[(SequenceId, TokenId)],
                plan: &SamplingPlan,
                control: &Control<'_>,
            ) -> Result<Vec<Result<SampledToken>>> {
                (**self).decode_step(rows, plan, control)
            }
            fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
                (**self).rewind(sequence, position)
            }
            fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
                (**self).fork(sequence)
            }
            fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
                (**self).snapshot(sequence)
            }
            fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
                (**self).restore(snapshot)
            }
        }
    )*};
}
forward!(&mut S, Box<S>);
