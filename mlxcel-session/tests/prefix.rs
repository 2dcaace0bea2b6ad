//! Texts are the same with and without reuse of computed prefixes.

use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{
    Control, InferenceSession, Model as EngineModel, Row, SamplingFields, SequenceId, SequenceState,
    SessionOptions, Snapshot, StepOutput,
};
use mlxcel_session::{
    Capabilities, Error, ErrorKind, Model, ModelInfo, Options, PrefixCache, Result, SessionStats, TokenId,
};

/// A prompt that shares `shared` tokens with the others.
fn prompt(shared: usize, number: TokenId) -> Vec<TokenId> {
    (0..shared as TokenId).map(|i| i * 7 % 60).chain([number, 5, number]).collect()
}

#[test]
fn prefix_reuse_changes_no_token() {
    for rewind in [true, false] {
        let capabilities =
            Capabilities::new(2, 4096).with_snapshot(true).with_rewind(rewind).with_logits(true);
        let backend =
            ReferenceBackend::new().with_capabilities(capabilities.with_sampling(SamplingFields::NONE));
        let plain = Model::from_parts(backend.model().unwrap(), None);
        let reusing = plain.clone().with_prefix_cache(PrefixCache::new(1 << 20));
        let (mut reused, mut cases) = (0, 0);
        for (seed, shared) in (0..40).zip([50, 50, 30, 64].into_iter().cycle()) {
            let options = Options::new(12).with_temperature(if seed % 3 == 0 { 0.0 } else { 1.0 });
            let options = options.with_seed(seed).with_repetition_penalty(1.2);
            let prompt = prompt(shared, seed as TokenId % 9);
            let run = |model: &Model| model.stream(&prompt, &options).unwrap().complete().unwrap();
            let (expected, found) = (run(&plain), run(&reusing));
            assert_eq!(expected.tokens, found.tokens, "rewind {rewind}, seed {seed}");
            assert_eq!(expected.logprobs, found.logprobs);
            assert_eq!(expected.usage.reused_tokens, 0);
            reused += usize::from(found.usage.reused_tokens >= 30);
            cases += 1;
        }
        assert!(reused > cases / 2, "rewind {rewind}: {reused} of {cases}");
    }
}

/// An engine that has no memory for the snapshot of a prompt's beginning.
struct Unkept(Arc<dyn EngineModel>);

struct UnkeptSession(Box<dyn InferenceSession>);

impl EngineModel for Unkept {
    fn info(&self) -> &ModelInfo {
        self.0.info()
    }
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        Ok(Box::new(UnkeptSession(self.0.open_session(options)?)))
    }
}

impl InferenceSession for UnkeptSession {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn open(&mut self) -> Result<SequenceId> {
        self.0.open()
    }
    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.0.close(sequence)
    }
    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.0.state(sequence)
    }
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        self.0.step(rows, control, out)
    }
    fn stats(&self) -> SessionStats {
        self.0.stats()
    }
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        match self.state(sequence)?.position {
            50 => Err(Error::new(ErrorKind::ResourceExhausted, "snapshot", "it fails, as it was told to")),
            _ => self.0.snapshot(sequence),
        }
    }
    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.0.restore(snapshot)
    }
}

#[test]
fn a_prefix_that_cannot_be_kept_does_not_fail_its_text() {
    let capabilities = Capabilities::new(2, 4096).with_snapshot(true).with_logits(true);
    let backend = ReferenceBackend::new().with_capabilities(capabilities);
    let plain = Model::from_parts(backend.model().unwrap(), None);
    let unkept = Unkept(Arc::clone(plain.engine()));
    let cache = PrefixCache::new(1 << 20);
    let model = Model::from_parts(Arc::new(unkept), None).with_prefix_cache(cache.clone());
    for number in 0..3 {
        let run = |model: &Model| {
            model.stream(&prompt(50, number), &Options::new(12)).unwrap().complete().unwrap().tokens
        };
        assert_eq!(run(&model), run(&plain));
    }
    assert_eq!(cache.stats().entries, 3);
}
