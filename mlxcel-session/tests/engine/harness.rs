//! Models that engines are tried on, and what is asked of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{
    Backend, Control, InferenceSession, Model as EngineModel, Row, RowResult, SequenceId, SequenceState,
    SessionOptions, Snapshot, StepOutput,
};
use mlxcel_session::{
    Capabilities, Completion, Engine, EngineStats, Error, ErrorKind, LoadOptions, Model, ModelInfo, Options,
    Request, RequestStream, Result, SessionStats, TokenId,
};

/// The reference engine with this many sequences and no stop token: its texts always reach the token limit.
pub fn reference(sequences: usize) -> Model {
    endless(&ReferenceBackend::new(), sequences)
}

/// How long a pass of a [`slow`] engine takes: enough for others to act in the meantime.
pub const PASS: Duration = Duration::from_millis(2);

/// As [`reference`], slow.
pub fn slow(sequences: usize) -> Model {
    endless(&ReferenceBackend::new().with_delay(PASS), sequences)
}

/// `backend` with this many sequences and no stop token.
pub fn endless(backend: &ReferenceBackend, sequences: usize) -> Model {
    let backend = backend.clone().with_stop_tokens([]);
    let options = LoadOptions::default().with_sequences(sequences);
    Model::from_parts(backend.load(&ReferenceBackend::source(), &options).unwrap(), None)
}

/// A prompt of `length` tokens that differs from those of other numbers.
pub fn prompt(number: u64, length: usize) -> Vec<TokenId> {
    (0..length as u64).map(|i| ((number * 7919 + i * 31 + number * i) % 63 + 1) as TokenId).collect()
}

/// Options of every kind: greedy ones, and seeded draws by the engine.
pub fn options(number: u64, tokens: usize) -> Options {
    let options = Options::new(tokens);
    match number % 3 {
        0 => options,
        1 => options.with_temperature(0.9).with_seed(number),
        _ => options.with_temperature(1.2).with_top_k(8).with_repetition_penalty(1.1).with_seed(number),
    }
}

/// What a request says in a session of its own.
pub fn alone(model: &Model, prompt: &[TokenId], options: &Options) -> Completion {
    model.generate_tokens(prompt, options).unwrap().complete().unwrap()
}

/// Submits a request for `tokens` tokens after the prompt of `length` tokens that has this number.
pub fn begin(engine: &Engine, number: u64, length: usize, tokens: usize) -> RequestStream {
    engine.generate_tokens(&prompt(number, length), &Options::new(tokens)).unwrap()
}

/// As [`begin`], with a priority.
pub fn begin_at(engine: &Engine, number: u64, length: usize, tokens: usize, priority: i32) -> RequestStream {
    let prompt = prompt(number, length);
    let request = Request::new(&prompt).with_options(Options::new(tokens)).with_priority(priority);
    engine.submit(request).unwrap()
}

/// Compares everything but how long it took.
pub fn assert_same(one: &Completion, other: &Completion) {
    assert_eq!(one.tokens, other.tokens);
    assert_eq!(one.logprobs, other.logprobs);
    assert_eq!((&one.text, one.finish_reason), (&other.text, other.finish_reason));
    assert_eq!(one.usage.prompt_tokens, other.usage.prompt_tokens);
    assert_eq!(one.usage.generated_tokens, other.usage.generated_tokens);
}

/// Waits until `reached` holds of the figures.
pub fn wait_until(engine: &Engine, reached: impl Fn(&EngineStats) -> bool) -> EngineStats {
    let start = Instant::now();
    loop {
        let stats = engine.stats();
        if reached(&stats) {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it does not come to it: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A model whose sessions fail as configured.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn EngineModel>,
    /// How many tokens all sequences of a session may hold together.
    pub memory: usize,
    /// Whether the first row of a step finds no memory if there are others.
    pub is_crowded: bool,
    /// The step that panics.
    pub panics_at: Option<usize>,
    /// The step that answers an error instead of running.
    pub fails_at: Option<usize>,
    /// The position of which there is no memory for a snapshot.
    pub unkept: Option<usize>,
    /// How many sessions are open.
    pub open: Arc<AtomicUsize>,
    /// The number of tokens of each row of each step.
    pub steps: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Faulty {
    pub fn new(model: &Model) -> Self {
        Self {
            inner: Arc::clone(model.engine()),
            memory: usize::MAX,
            is_crowded: false,
            panics_at: None,
            fails_at: None,
            unkept: None,
            open: Arc::default(),
            steps: Arc::default(),
        }
    }

    pub fn model(&self) -> Model {
        Model::from_parts(Arc::new(self.clone()), None)
    }
}

impl EngineModel for Faulty {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let inner = self.inner.open_session(options)?;
        Ok(Box::new(FaultySession { inner, model: self.clone(), held: BTreeMap::new() }))
    }
}

struct FaultySession {
    inner: Box<dyn InferenceSession>,
    model: Faulty,
    /// The tokens of each sequence.
    held: BTreeMap<SequenceId, usize>,
}

impl Drop for FaultySession {
    fn drop(&mut self) {
        self.model.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InferenceSession for FaultySession {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn open(&mut self) -> Result<SequenceId> {
        let sequence = self.inner.open()?;
        self.held.insert(sequence, 0);
        Ok(sequence)
    }
    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.held.remove(&sequence);
        self.inner.close(sequence)
    }
    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.inner.state(sequence)
    }
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        let step = {
            let mut steps = self.model.steps.lock().unwrap();
            steps.push(rows.iter().map(|row| row.tokens.len()).collect());
            steps.len() - 1
        };
        assert_ne!(self.model.panics_at, Some(step), "the engine panics, as it was told to");
        if self.model.fails_at == Some(step) {
            return Err(Error::new(ErrorKind::Io, "step", "the step fails, as it was told to"));
        }
        let mut used: usize = self.held.values().sum();
        let fits: Vec<bool> = rows
            .iter()
            .enumerate()
            .map(|(number, row)| {
                let is_crowded = self.model.is_crowded && number == 0 && rows.len() > 1;
                let fits = used + row.tokens.len() <= self.model.memory && !is_crowded;
                used += if fits { row.tokens.len() } else { 0 };
                fits
            })
            .collect();
        let run: Vec<Row<'_>> =
            rows.iter().zip(&fits).filter(|(_, fits)| **fits).map(|(row, _)| *row).collect();
        let mut answers: Vec<Result<RowResult>> = Vec::new();
        if !run.is_empty() {
            self.inner.step(&run, control, out)?;
            answers = out.take();
        }
        out.clear();
        let mut answers = answers.into_iter();
        for (row, fits) in rows.iter().zip(fits) {
            out.push(if fits {
                *self.held.get_mut(&row.sequence).unwrap() += row.tokens.len();
                answers.next().unwrap()
            } else {
                Err(Error::new(ErrorKind::ResourceExhausted, "step", "the caches are full"))
            });
        }
        Ok(())
    }
    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        self.inner.rewind(sequence, position)?;
        self.held.insert(sequence, position);
        Ok(())
    }
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let copy = self.inner.fork(sequence)?;
        self.held.insert(copy, self.held[&sequence]);
        Ok(copy)
    }
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        if self.model.unkept == Some(self.held[&sequence]) {
            return Err(Error::new(ErrorKind::ResourceExhausted, "snapshot", "it fails, as it was told to"));
        }
        self.inner.snapshot(sequence)
    }
    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        let sequence = self.inner.restore(snapshot)?;
        self.held.insert(sequence, snapshot.position());
        Ok(sequence)
    }
    fn stats(&self) -> SessionStats {
        self.inner.stats()
    }
}
