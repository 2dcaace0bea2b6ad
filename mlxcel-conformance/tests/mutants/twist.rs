//! A wrapper over the reference engine that does something else than it at one place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::ThreadId;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Adapter, Backend, Capabilities, Control, ErrorKind, InferenceSession, InferenceSessionExt, LoadOptions,
    Model, ModelInfo, ModelSource, Result, Row, RowResult, SequenceId, SequenceOptions, SequenceState,
    SessionOptions, SessionStats, Snapshot, StepOutput, TokenId,
};

/// What is behind a twist.
pub(crate) struct Inner {
    /// The session that does the work.
    pub(crate) session: Box<dyn InferenceSession>,
    /// Another one, to compute what it should not have said.
    pub(crate) scratch: Box<dyn InferenceSession>,
    pub(crate) shared: Arc<Shared>,
    /// What the last step returned beside answers, row by row.
    pub(crate) states: Vec<Option<Vec<f32>>>,
    /// Gone with the last handle of the model.
    pub(crate) model: Weak<()>,
}

/// What the rows of a step are answered with.
pub(crate) type Results = Result<Vec<Result<RowResult>>>;

impl Inner {
    /// A step of the session that does the work.
    pub(crate) fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut out = StepOutput::new();
        self.session.step(rows, control, &mut out)?;
        self.states = (0..rows.len()).map(|row| out.take_states(row)).collect();
        Ok(out.take())
    }

    /// The tokens that a sequence holds; none where there is no such sequence.
    pub(crate) fn text(&mut self, sequence: SequenceId) -> Vec<TokenId> {
        self.session.snapshot(sequence).map(|snapshot| tokens_of(&snapshot)).unwrap_or_default()
    }

    /// Makes a sequence hold other tokens than it was fed.
    pub(crate) fn rewrite(&mut self, sequence: SequenceId, tokens: &[TokenId]) {
        self.session.rewind(sequence, 0).unwrap();
        if !tokens.is_empty() {
            self.session.run_row(Row::extend(sequence, tokens), &Control::default()).unwrap();
        }
    }

    /// Opens a sequence that holds `tokens` by computing them.
    pub(crate) fn recompute(&mut self, tokens: &[TokenId]) -> Result<SequenceId> {
        let sequence = self.session.open()?;
        if !tokens.is_empty() {
            self.session.run_row(Row::extend(sequence, tokens), &Control::default())?;
        }
        Ok(sequence)
    }
}

pub(crate) fn run(session: &mut dyn InferenceSession, rows: &[Row<'_>], control: &Control<'_>) -> Results {
    let mut out = StepOutput::new();
    session.step(rows, control, &mut out)?;
    Ok(out.take())
}

/// What the sessions of a mutant share and should not.
pub(crate) struct Shared {
    pub(crate) session: Mutex<Box<dyn InferenceSession>>,
    pub(crate) thread: OnceLock<ThreadId>,
    /// What the last sequence was opened with.
    pub(crate) options: Mutex<SequenceOptions>,
}

/// What a mutant does otherwise; whatever is not overridden goes to the engine as it is.
pub(crate) trait Twist: Send {
    fn open(&mut self, inner: &mut Inner) -> Result<SequenceId> {
        inner.session.open()
    }
    fn open_with(&mut self, inner: &mut Inner, options: &SequenceOptions) -> Result<SequenceId> {
        inner.session.open_with(options)
    }
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        inner.session.close(sequence)
    }
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        inner.session.state(sequence)
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        inner.step(rows, control)
    }
    fn states(&mut self, states: &mut Vec<f32>, width: usize) {
        let _ = (states, width);
    }
    fn stats(&self, inner: &Inner) -> SessionStats {
        inner.session.stats()
    }
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        inner.session.rewind(sequence, position)
    }
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        inner.session.fork(sequence)
    }
    fn snapshot(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<Snapshot> {
        inner.session.snapshot(sequence)
    }
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        inner.session.restore(snapshot)
    }
    fn restore_with(
        &mut self,
        inner: &mut Inner,
        snapshot: &Snapshot,
        options: &SequenceOptions,
    ) -> Result<SequenceId> {
        inner.session.restore_with(snapshot, options)
    }
}

/// No twist at all.
pub(crate) struct Straight;

impl Twist for Straight {}

/// Declares twists that replace a method by a function of this type.
macro_rules! replacing {
    ($($twist:ident($function:ident): $method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub(crate) struct $twist(pub(crate) $function);

        pub(crate) type $function = fn(&mut Inner, $($type),*) -> $result;

        impl Twist for $twist {
            fn $method(&mut self, inner: &mut Inner, $($argument: $type),*) -> $result {
                (self.0)(inner, $($argument),*)
            }
        }
    )*};
}

replacing! {
    Step(Stepping): step(rows: &[Row<'_>], control: &Control<'_>) -> Results;
    Close(Closing): close(sequence: SequenceId) -> Result<()>;
    Rewind(Rewinding): rewind(sequence: SequenceId, position: usize) -> Result<()>;
    Fork(Forking): fork(sequence: SequenceId) -> Result<SequenceId>;
    Restore(Restoring): restore(snapshot: &Snapshot) -> Result<SequenceId>;
}

/// Changes each row before it runs.
pub(crate) struct Rows(pub(crate) Rowing);

pub(crate) type Rowing = fn(&mut Row<'_>);

impl Twist for Rows {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut rows = rows.to_vec();
        rows.iter_mut().for_each(self.0);
        inner.step(&rows, control)
    }
}

/// Changes what is told of sequences.
pub(crate) struct State(pub(crate) fn(&mut SequenceState));

impl Twist for State {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        let mut state = inner.session.state(sequence)?;
        (self.0)(&mut state);
        Ok(state)
    }
}

/// Changes what is counted.
pub(crate) struct Stats(pub(crate) fn(&mut SessionStats));

impl Twist for Stats {
    fn stats(&self, inner: &Inner) -> SessionStats {
        let mut stats = inner.session.stats();
        (self.0)(&mut stats);
        stats
    }
}

/// An engine that is broken in one way.
#[derive(Clone)]
pub(crate) struct Broken {
    pub(crate) reference: ReferenceBackend,
    /// Makes the twist of each session.
    pub(crate) twist: Arc<dyn Fn() -> Box<dyn Twist> + Send + Sync>,
    /// Changes the options before they are loaded with.
    pub(crate) load: fn(&mut LoadOptions),
    /// Changes the options before a session is opened with them.
    pub(crate) session: fn(&mut SessionOptions, &ModelInfo),
    pub(crate) info: fn(&mut ModelInfo),
    /// Changes what it says that it can.
    pub(crate) claims: fn(&mut Capabilities),
    /// Leaves what a slot held before in it.
    pub(crate) stale_adapters: bool,
}

impl Broken {
    /// The reference engine as it is.
    pub(crate) fn new(reference: ReferenceBackend) -> Self {
        Self {
            reference,
            twist: Arc::new(|| Box::new(Straight)),
            load: |_| {},
            session: |_, _| {},
            info: |_| {},
            claims: |_| {},
            stale_adapters: false,
        }
    }
}

impl Backend for Broken {
    fn name(&self) -> &str {
        self.reference.name()
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let mut options = options.clone();
        (self.load)(&mut options);
        let model = self.reference.load(source, &options)?;
        let mut info = model.info().clone();
        (self.info)(&mut info);
        let mut claimed = model.capabilities().clone();
        (self.claims)(&mut claimed);
        let session = Mutex::new(model.open_session(&SessionOptions::default())?);
        let shared = Arc::new(Shared { session, thread: OnceLock::new(), options: Mutex::default() });
        let broken = self.clone();
        let (first, alive) = (OnceLock::new(), Arc::new(()));
        let was_full = AtomicBool::new(false);
        Ok(Arc::new(BrokenModel { broken, model, info, claimed, shared, alive, first, was_full }))
    }
}

struct BrokenModel {
    broken: Broken,
    model: Arc<dyn Model>,
    info: ModelInfo,
    claimed: Capabilities,
    shared: Arc<Shared>,
    alive: Arc<()>,
    /// The first adapter that was loaded, and whether all slots were taken once.
    first: OnceLock<ModelSource>,
    was_full: AtomicBool,
}

impl Model for BrokenModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.claimed
    }

    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        let mut twisted = options.clone();
        (self.broken.session)(&mut twisted, &self.info);
        let inner = Inner {
            session: self.model.open_session(&twisted)?,
            scratch: self.model.open_session(&SessionOptions::default())?,
            shared: Arc::clone(&self.shared),
            states: Vec::new(),
            model: Arc::downgrade(&self.alive),
        };
        let mut claimed = self.claimed.clone();
        claimed.context = options.capacity.unwrap_or(claimed.context);
        Ok(Box::new(TwistedSession { inner, twist: (self.broken.twist)(), claimed }))
    }

    fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
        let first = self.first.get_or_init(|| source.clone());
        let stale = self.broken.stale_adapters && self.was_full.load(Ordering::SeqCst);
        let loaded = self.model.load_adapter(if stale { first } else { source });
        if loaded.as_ref().is_err_and(|error| error.kind() == ErrorKind::CapacityExceeded) {
            self.was_full.store(true, Ordering::SeqCst);
        }
        loaded
    }
}

struct TwistedSession {
    inner: Inner,
    twist: Box<dyn Twist>,
    claimed: Capabilities,
}

impl InferenceSession for TwistedSession {
    fn capabilities(&self) -> &Capabilities {
        &self.claimed
    }
    fn open(&mut self) -> Result<SequenceId> {
        self.twist.open(&mut self.inner)
    }
    fn open_with(&mut self, options: &SequenceOptions) -> Result<SequenceId> {
        self.twist.open_with(&mut self.inner, options)
    }
    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.twist.close(&mut self.inner, sequence)
    }
    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.twist.state(&self.inner, sequence)
    }
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        self.inner.states.clear();
        let results = self.twist.step(&mut self.inner, rows, control)?;
        let width = self.inner.session.capabilities().output_states.unwrap_or_default();
        let states = std::mem::take(&mut self.inner.states).into_iter().chain(std::iter::repeat(None));
        for (result, states) in results.into_iter().zip(states) {
            out.push(result);
            if let Some(mut states) = states {
                self.twist.states(&mut states, width);
                out.set_states(states);
            }
        }
        Ok(())
    }
    fn stats(&self) -> SessionStats {
        self.twist.stats(&self.inner)
    }
    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        self.twist.rewind(&mut self.inner, sequence, position)
    }
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        self.twist.fork(&mut self.inner, sequence)
    }
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        self.twist.snapshot(&mut self.inner, sequence)
    }
    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.twist.restore(&mut self.inner, snapshot)
    }
    fn restore_with(&mut self, snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId> {
        self.twist.restore_with(&mut self.inner, snapshot, options)
    }
}

/// The tokens in a snapshot of the reference engine: the first four bytes of every twelve.
pub(crate) fn tokens_of(snapshot: &Snapshot) -> Vec<TokenId> {
    snapshot
        .payload()
        .chunks_exact(12)
        .map(|entry| TokenId::from_le_bytes(entry[..4].try_into().unwrap()))
        .collect()
}

/// Runs a step over rows with other tokens or wants.
pub(crate) fn step(session: &mut dyn InferenceSession, rows: &[Row<'_>]) -> Results {
    run(session, rows, &Control::default())
}
