//! Sessions: exclusive owners of sequences and their KV caches.

use std::time::Duration;

use crate::capabilities::Capabilities;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::plan::SamplingPlan;
use crate::sequence::{SequenceId, SequenceOptions, SequenceState};
use crate::snapshot::Snapshot;
use crate::step::{Control, Row, RowResult, SampledToken, StepOutput};
use crate::token::TokenId;

/// Counters of a session since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Passes over the weights.
    pub passes: u64,
    /// Tokens of rows that were fed. Padding and tokens that the engine computes again do not count; rewind,
    /// fork and restore add none.
    pub tokens: u64,
    /// Bytes sent to the device: token ids, positions. Weights do not count.
    pub uploaded_bytes: u64,
    /// Bytes read back from the device.
    pub read_back_bytes: u64,
    /// Memory of the open sequences in bytes: KV caches, and state of fixed size. Allocated but unused
    /// positions count.
    pub kv_bytes: u64,
    /// Time spent compiling programs during steps.
    pub compile_time: Duration,
}

/// Sequences and their KV caches, advanced step by step by one owner.
///
/// # Contract
///
/// *For users*: open a sequence, feed it tokens by [`step`](Self::step) (or [`InferenceSessionExt::run_row`]
/// and [`InferenceSessionExt::decode_step`]), close it. A session is used by one thread at a time, and may
/// move between threads:
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
/// Two threads cannot drive it at the same time,
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
/// and one cannot read it while another drives it:
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
/// *For implementers*: a call that fails before any work changes nothing. Errors of a row are returned in
/// that row's result and do not affect other rows; `step` itself fails only if no row was touched. Sequences
/// that a device fault may have left half-written are poisoned. Methods without a body are required. The
/// optional ones return [`ErrorKind::Unsupported`] by default; claim them in the capabilities when you
/// implement them: a claimed one that is not implemented returns [`ErrorKind::Internal`].
pub trait InferenceSession: Send {
    /// What this session supports.
    fn capabilities(&self) -> &Capabilities;

    /// Opens an empty sequence: [`open_with`](Self::open_with) and the default options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CapacityExceeded`] if [`Capabilities::sequences`] are open.
    fn open(&mut self) -> Result<SequenceId>;

    /// Opens an empty sequence with options. An engine without adapters leaves this as it is.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open). For an adapter: [`ErrorKind::Unsupported`] if the engine has none,
    /// [`ErrorKind::InvalidInput`] if it was loaded into another model.
    fn open_with(&mut self, options: &SequenceOptions) -> Result<SequenceId> {
        options.refuse_adapter("open sequence")?;
        self.open()
    }

    /// Closes a sequence and frees its memory, also if it is poisoned.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the sequence is not open.
    fn close(&mut self, sequence: SequenceId) -> Result<()>;

    /// The state of a sequence.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the sequence is not open.
    fn state(&self, sequence: SequenceId) -> Result<SequenceState>;

    /// Appends each row's tokens to its sequence and writes one result per row to `out`, as the row's
    /// [`Want`](crate::Want) says.
    ///
    /// Rows can be any mixture of prompt chunks and decoding rows. Rows that fit into one pass over the
    /// weights share it. Between passes, `control` can cancel all rows that are not done, and a row's own
    /// [`cancel`](Row::cancel) that row.
    ///
    /// # Errors
    ///
    /// Of the call: [`ErrorKind::InvalidInput`] for an empty step. Of a row: [`ErrorKind::NotFound`] (no such
    /// sequence), [`ErrorKind::InvalidInput`] (no tokens, a token outside the vocabulary, a second row of one
    /// sequence), [`ErrorKind::CapacityExceeded`] (before any work), [`ErrorKind::Unsupported`] (a want that
    /// is not claimed), [`ErrorKind::Poisoned`], [`ErrorKind::Cancelled`], [`ErrorKind::Device`].
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()>;

    /// Counters of the session.
    fn stats(&self) -> SessionStats;

    /// Drops every token from `position` on, without computing anything. Needs [`Capabilities::rewind`], but
    /// for the draft tokens of the sequence's last row
    /// ([`Positions::Drafts`](crate::Positions::Drafts)): those can be dropped until its next row by all
    /// sessions that verify them ([`Capabilities::verification`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`];
    /// [`ErrorKind::InvalidInput`] if the sequence is shorter.
    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        let _ = (sequence, position);
        let Capabilities { rewind, verification, .. } = *self.capabilities();
        Err(Capabilities::unimplemented(rewind || verification, "rewind", "rewind"))
    }

    /// Opens a second sequence with the same tokens, without computing anything. Needs
    /// [`Capabilities::fork`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`], and the errors of
    /// [`open`](Self::open).
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let _ = sequence;
        Err(Capabilities::unimplemented(self.capabilities().fork, "fork", "fork"))
    }

    /// Copies the state of a sequence out of the session, without computing anything. Needs
    /// [`Capabilities::snapshot`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], [`ErrorKind::NotFound`], [`ErrorKind::Poisoned`].
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let _ = sequence;
        Err(Capabilities::unimplemented(self.capabilities().snapshot, "snapshot", "snapshot"))
    }

    /// Opens a sequence from a snapshot of this model and engine, without computing anything. Needs
    /// [`Capabilities::snapshot`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`]; [`ErrorKind::InvalidInput`] for a snapshot of another
    /// [identity](Snapshot::identity) or a longer one than this session's capacity; [`ErrorKind::Corrupt`];
    /// and the errors of [`open`](Self::open).
    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        let _ = snapshot;
        Err(Capabilities::unimplemented(self.capabilities().snapshot, "restore", "snapshot"))
    }

    /// [`restore`](Self::restore) with options: a snapshot of a sequence with an adapter needs that adapter.
    /// An engine without adapters leaves this as it is.
    ///
    /// # Errors
    ///
    /// The errors of [`restore`](Self::restore), also for a snapshot of another adapter or of none, and of
    /// [`open_with`](Self::open_with).
    fn restore_with(&mut self, snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId> {
        options.refuse_adapter("restore")?;
        self.restore(snapshot)
    }
}

/// Steps in the most common forms, for every [`InferenceSession`].
pub trait InferenceSessionExt: InferenceSession {
    /// Runs a step of one row, such as a prompt or a chunk of it, and returns its result.
    ///
    /// # Errors
    ///
    /// The errors of [`step`](InferenceSession::step), of the call and of the row.
    fn run_row(&mut self, row: Row<'_>, control: &Control<'_>) -> Result<RowResult> {
        let mut out = StepOutput::new();
        self.step(&[row], control, &mut out)?;
        out.take_only("step")
    }

    /// Appends one token to each sequence and returns the next token of each, in one step.
    ///
    /// # Errors
    ///
    /// The errors of [`step`](InferenceSession::step).
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
        Ok(out.take().into_iter().map(|row| row.and_then(RowResult::into_token)).collect())
    }
}

impl<S: InferenceSession + ?Sized> InferenceSessionExt for S {}

forward!(InferenceSession<S> for &mut S, Box<S>; {
    fn capabilities() -> &Capabilities;
    fn state(sequence: SequenceId) -> Result<SequenceState>;
    fn stats() -> SessionStats;
    mut fn open() -> Result<SequenceId>;
    mut fn open_with(options: &SequenceOptions) -> Result<SequenceId>;
    mut fn close(sequence: SequenceId) -> Result<()>;
    mut fn step(rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()>;
    mut fn rewind(sequence: SequenceId, position: usize) -> Result<()>;
    mut fn fork(sequence: SequenceId) -> Result<SequenceId>;
    mut fn snapshot(sequence: SequenceId) -> Result<Snapshot>;
    mut fn restore(snapshot: &Snapshot) -> Result<SequenceId>;
    mut fn restore_with(snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId>;
});
