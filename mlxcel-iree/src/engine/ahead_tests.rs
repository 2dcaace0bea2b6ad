//! What is compiled when: at load, ahead of its need, when it is needed, and by whom.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{
    Backend, CancelToken, Control, ErrorKind, InferenceSession, LoadOptions, LoadStage, Model, Precision,
    Prepare, Row, SequenceId, SessionOptions, StepOutput,
};

use crate::backend::IreeBackend;
use crate::testing::write_compiler;

const PATIENCE: Duration = Duration::from_secs(600);

/// A decoding row and chunks of 16 and 128.
const AT_LOAD: usize = 3;

/// A compiler that logs its invocations, waits while a file `hold` exists, or `hold-128` for a chunk of 128
/// tokens, and fails if a file `fail` exists.
struct Workshop(tempfile::TempDir);

impl Workshop {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let real = crate::testing::compiler();
        let text = format!(
            "#!/bin/sh\ncd_to='{folder}'\nif [ \"$1\" != --version ]; then\n  echo $$ >> \"$cd_to/started\"\n  \
             while [ -e \"$cd_to/hold\" ]; do sleep 0.02; done\n  \
             while [ -e \"$cd_to/hold-128\" ] && grep -q 'tensor<128xi32>' program.mlir; do sleep 0.02; done\n  \
             if [ -e \"$cd_to/fail\" ]; then echo refused >&2; exit 1; fi\nfi\nexec '{real}' \"$@\"\n",
            folder = folder.path().display(),
            real = real.path().display()
        );
        let script = folder.path().join("iree-compile");
        write_compiler(&script, &text);
        Self(folder)
    }

    fn engine(&self) -> IreeBackend {
        IreeBackend::new()
            .with_compiler(self.0.path().join("iree-compile"))
            .with_cache_dir(self.0.path().join("cache"))
    }

    /// The model, with the programs that are compiled in the background too.
    fn open(&self, folder: &Path, options: &LoadOptions) -> Arc<dyn Model> {
        let model = self.engine().load(&folder.into(), options).unwrap();
        self.wait_for("the prompt chunks", || self.kept() == AT_LOAD);
        model
    }

    fn put(&self, file: &str) {
        fs::write(self.0.path().join(file), "").unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.0.path().join(file)).unwrap();
    }

    /// The processes that were started to compile.
    fn started(&self) -> Vec<String> {
        let log = fs::read_to_string(self.0.path().join("started")).unwrap_or_default();
        log.lines().map(ToOwned::to_owned).collect()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "{what}; {} programs were compiled", self.started().len());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many programs the cache has.
    fn kept(&self) -> usize {
        let files = fs::read_dir(self.0.path().join("cache")).unwrap();
        files
            .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "vmfb"))
            .count()
    }
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama")
}

/// The fixture with room for sequences that leave the least cache length.
fn long_fixture() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture().join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = fs::read(fixture().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = 4096.into();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact)
}

fn feed(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[u32],
) -> mlxcel_core::Result<Vec<f32>> {
    let mut out = StepOutput::default();
    session.step(&[Row::logits(sequence, tokens)], &Control::default(), &mut out)?;
    out.take().remove(0)?.into_logits()
}

fn text(tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|i| 3 + (i * 37 + i * i % 11) % 250).collect()
}

#[test]
fn prepare_compiles_all_reachable_programs_at_load_with_progress() {
    let workshop = Workshop::new();
    let cancel = CancelToken::new();
    let told = Arc::new(AtomicU64::new(0));
    let all = Arc::new(AtomicU64::new(0));
    let load = |prepare, cancel_at: Option<u64>| {
        let (told, all, cancel) = (told.clone(), all.clone(), cancel.clone());
        told.store(0, Ordering::SeqCst);
        let options =
            options().with_sequences(2).with_capacity(100).with_prepare(prepare).with_cancel(cancel.clone());
        let options = options.with_progress(move |progress| {
            if progress.stage == LoadStage::Compile {
                assert!(progress.done <= progress.total && progress.done >= told.load(Ordering::SeqCst));
                told.store(progress.done, Ordering::SeqCst);
                all.store(progress.total, Ordering::SeqCst);
                if cancel_at == Some(progress.done) {
                    cancel.cancel();
                }
            }
        });
        workshop.engine().load(&fixture().into(), &options)
    };
    // One and two decoding rows, and each beside a chunk of 16 or 128.
    let model = load(Prepare::Generation, None).unwrap();
    assert_eq!((told.load(Ordering::SeqCst), workshop.started().len(), workshop.kept()), (6, 6, 6));
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let [first, second] = [session.open().unwrap(), session.open().unwrap()];
    let mut out = StepOutput::default();
    let text = text(40);
    session.step(&[Row::logits(first, &text[..3])], &Control::default(), &mut out).unwrap();
    for tokens in [&text[..], &text[..1], &text[..5]] {
        let rows = [Row::logits(second, tokens), Row::logits(first, &text[..1])];
        session.step(&rows, &Control::default(), &mut out).unwrap();
        assert!(out.rows().iter().all(|row| row.is_ok()));
    }
    assert_eq!((workshop.started().len(), session.stats().compile_time), (6, Duration::ZERO));
    // There are more for scores, hidden states and draft tokens that are verified; it can be stopped between
    // any two.
    let error = load(Prepare::Everything, Some(7)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let all = usize::try_from(all.load(Ordering::SeqCst)).unwrap();
    assert!(all > 10 && workshop.kept() < all, "{} of {all} programs", workshop.kept());
}

#[test]
fn text_is_generated_while_the_program_for_long_prompts_is_compiled() {
    let workshop = Workshop::new();
    workshop.put("hold-128");
    let model = workshop.engine().load(&fixture().into(), &options()).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let text = text(200);
    feed(&mut *session, sequence, &text[..5]).unwrap();
    feed(&mut *session, sequence, &text[5..6]).unwrap();
    workshop.wait_for("the chunk of 128", || workshop.started().len() == AT_LOAD);
    assert_eq!((workshop.kept(), session.stats().compile_time), (AT_LOAD - 1, Duration::ZERO));
    workshop.remove("hold-128");
    feed(&mut *session, sequence, &text[6..]).unwrap();
    assert_eq!((workshop.started().len(), workshop.kept()), (AT_LOAD, AT_LOAD), "it is compiled once");
}

#[test]
fn a_sequence_enters_the_next_kv_length_bucket_with_programs_compiled_ahead() {
    let (workshop, folder) = (Workshop::new(), long_fixture());
    let model = workshop.open(folder.path(), &options().with_sequences(1));
    let text = text(2100);
    let [mut session, mut other] = [(); 2].map(|()| model.open_session(&SessionOptions::default()).unwrap());
    let sequence = session.open().unwrap();
    feed(&mut *session, sequence, &text[..1400]).unwrap();
    assert_eq!(workshop.started().len(), AT_LOAD, "the end of the length is far");
    // From three quarters of 2,048 on: a decoding row and chunks of both sizes at the next length.
    for token in text[1400..1537].chunks(1) {
        feed(&mut *session, sequence, token).unwrap();
    }
    workshop.wait_for("a decoding row", || workshop.kept() == AT_LOAD + 1);
    feed(&mut *session, sequence, &text[1537..1800]).unwrap();
    workshop.wait_for("chunks", || workshop.kept() == AT_LOAD + 3);
    let before = session.stats().compile_time;
    feed(&mut *session, sequence, &text[1800..2040]).unwrap();
    let mut found = Vec::new();
    for token in text[2040..].chunks(1) {
        found = feed(&mut *session, sequence, token).unwrap();
    }
    assert_eq!((session.stats().compile_time, workshop.started().len()), (before, AT_LOAD + 3));

    // Two keys or values of three layers and two heads, in 4,224 positions of which half are in use.
    let (taken, whole) = (session.stats().kv_bytes, 12 * 4224 * 16 * 4);
    assert!(
        taken * 10 > whole * 4 && taken * 10 < whole * 6,
        "{taken} bytes of {whole} for {} tokens",
        text.len()
    );

    let whole = other.open().unwrap();
    let expected = feed(&mut *other, whole, &text).unwrap();
    let error = found.iter().zip(&expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    let scale = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    assert!(error <= 1e-4 * scale, "{error} of {scale}");
}

#[test]
fn a_failed_ahead_compilation_is_an_error_only_when_the_program_is_needed() {
    let (workshop, folder) = (Workshop::new(), long_fixture());
    let model = workshop.open(folder.path(), &options().with_sequences(1));
    let text = text(2050);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    workshop.put("fail");
    feed(&mut *session, sequence, &text[..2040]).unwrap();
    workshop.wait_for("all fail", || workshop.started().len() >= AT_LOAD + 3);
    for token in text[2040..2048].chunks(1) {
        feed(&mut *session, sequence, token).unwrap();
    }
    let error = feed(&mut *session, sequence, &text[2048..2049]).unwrap_err();
    assert_eq!((error.kind(), error.context("program")), (ErrorKind::Compile, Some("1@4224")), "{error}");
    let state = session.state(sequence).unwrap();
    assert!(!state.poisoned && state.position == 2048);
    workshop.remove("fail");
    feed(&mut *session, sequence, &text[2048..2049]).unwrap();

    // What is being made ahead ends with the model, and so does the process that makes it.
    drop((session, model));
    let model = workshop.engine().load(&folder.path().into(), &options().with_sequences(1)).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let before = workshop.started().len();
    workshop.put("hold");
    feed(&mut *session, sequence, &text[..2040]).unwrap();
    workshop.wait_for("the next chunk", || workshop.started().len() == before + 1);
    drop(session);
    let began = Instant::now();
    drop(model);
    assert!(began.elapsed() < PATIENCE, "dropping the model took {:?}", began.elapsed());
    assert_eq!(workshop.started().len(), before + 1);
    #[cfg(target_os = "linux")]
    for process in workshop.started() {
        assert!(!Path::new("/proc").join(&process).exists(), "{process} still compiles");
    }
}

#[test]
fn waiting_for_another_sessions_compilation_can_be_cancelled() {
    let workshop = Workshop::new();
    let model = workshop.open(&fixture(), &options().with_sequences(2));
    let step = |control: &Control<'_>| {
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let rows = [session.open().unwrap(), session.open().unwrap()];
        let mut out = StepOutput::default();
        session.step(&rows.map(|row| Row::logits(row, &[5])), control, &mut out).unwrap();
        out.take().remove(0)
    };
    let before = workshop.started().len();
    let cancel = CancelToken::new();
    workshop.put("hold");
    thread::scope(|scope| {
        let compiles = scope.spawn(|| step(&Control::default()));
        workshop.wait_for("one compiles", || workshop.started().len() > before);
        let waits = scope.spawn(|| step(&Control::cancelled_by(&cancel)));
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        cancel.cancel();
        workshop.wait_for("the other is cancelled", || waits.is_finished());
        assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(!compiles.is_finished());
        workshop.remove("hold");
        compiles.join().unwrap().unwrap();
    });
    assert_eq!(workshop.started().len(), before + 1);
    step(&Control::default()).unwrap();
    assert_eq!(workshop.started().len(), before + 1);
}
