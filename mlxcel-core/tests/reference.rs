//! The reference engine: its own settings, and what the checks of `mlxcel-conformance`, which it passes, do not
//! measure.

use std::sync::Arc;
use std::time::Duration;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, CancelToken, Capabilities, Control, ErrorKind, GenerateOptions, InferenceSession,
    InferenceSessionExt, LoadOptions, Model, ModelInfo, ModelSource, Precision, Result, Row, RowResult,
    SamplingParams, SamplingPlan, SequenceId, SessionOptions, Snapshot, StateIdentity, StepOutput,
    TokenChoice, TokenId, TokenMask, TokenStream, Want,
};

const PROMPT: [TokenId; 40] = {
    let mut prompt = [0; 40];
    let mut index = 0;
    while index < prompt.len() {
        prompt[index] = (index * 7 % 61) as TokenId + 1;
        index += 1;
    }
    prompt
};

fn session(backend: &ReferenceBackend) -> Box<dyn InferenceSession> {
    backend.model().unwrap().open_session(&SessionOptions::default()).unwrap()
}

fn feed(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[TokenId]) -> Vec<f32> {
    session.run_row(Row::logits(sequence, tokens), &Control::default()).unwrap().into_logits().unwrap()
}

fn step(session: &mut dyn InferenceSession, rows: &[Row<'_>]) -> Vec<Result<RowResult>> {
    let mut out = StepOutput::new();
    session.step(rows, &Control::default(), &mut out).unwrap();
    out.take()
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn plan(change: impl FnOnce(&mut SamplingParams)) -> SamplingPlan {
    let mut params = SamplingParams::greedy();
    change(&mut params);
    let model = ReferenceBackend::new().model().unwrap();
    SamplingPlan::negotiate(&params, model.capabilities()).unwrap()
}

#[test]
fn rows_of_a_step_share_as_many_passes_as_claimed() {
    for (batch_rows, passes) in [(8, 3), (1, 5)] {
        let claimed = Capabilities::new(8, 64).with_batch_rows(batch_rows);
        let mut session = session(&ReferenceBackend::new().with_capabilities(claimed));
        let [a, b, c] = [(); 3].map(|()| session.open().unwrap());
        // 40 tokens in chunks of 16; others ride along.
        let rows = [Row::extend(a, &PROMPT), Row::extend(b, &[1]), Row::extend(c, &PROMPT[..16])];
        let results = step(&mut *session, &rows);
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(session.stats().passes, passes, "{batch_rows} rows");
    }
}

#[test]
fn a_snapshot_whose_values_changed_is_rejected() {
    let mut session = session(&ReferenceBackend::new());
    let sequence = session.open().unwrap();
    feed(&mut *session, sequence, &PROMPT);
    let snapshot = session.snapshot(sequence).unwrap();
    let mut payload = snapshot.payload().to_vec();
    payload[20] ^= 1;
    let damaged = Snapshot::new(snapshot.identity().clone(), snapshot.position(), payload);
    assert_eq!(kind(session.restore(&damaged)), ErrorKind::Corrupt);
}

#[test]
fn removed_capabilities_return_unsupported() {
    let none = Capabilities::new(2, 32);
    let mut session = session(&ReferenceBackend::new().with_capabilities(none.clone()));
    assert_eq!(session.capabilities(), &none.with_prompt_chunk(16));
    let a = session.open().unwrap();
    let (drawn, greedy) = (plan(|p| p.temperature = 1.0), SamplingPlan::greedy());
    let mask = TokenMask::allowing(64, [1]);
    let masked = Want::token(&greedy).with_masks(std::slice::from_ref(&mask));
    for want in
        [Want::logits(), Want::likelihoods(0), Want::token(&drawn), Want::token(&greedy).with_top(1), masked]
    {
        let error = step(&mut *session, &[Row::new(a, &[1], want)]).remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.context("capability").is_some(), "{error}");
    }
    assert_eq!(kind(session.rewind(a, 0)), ErrorKind::Unsupported);
    assert_eq!(kind(session.fork(a)), ErrorKind::Unsupported);
    assert_eq!(kind(session.snapshot(a)), ErrorKind::Unsupported);
    let foreign = Snapshot::new(StateIdentity::of(&ModelInfo::new("", "", 0)), 0, []);
    assert_eq!(kind(session.restore(&foreign)), ErrorKind::Unsupported);
    session.open().unwrap();
    assert_eq!(kind(session.open()), ErrorKind::CapacityExceeded);
}

#[test]
fn cancelling_stops_at_a_chunk_and_leaves_the_sequence_usable() {
    let backend = ReferenceBackend::new().with_chunk(4).with_delay(Duration::from_millis(40));
    let mut session = session(&backend);
    let sequence = session.open().unwrap();
    // Ten seconds, of which it takes a chunk or two.
    let long = vec![3; 1000];
    let cancel = CancelToken::new();
    let watcher = {
        let cancel = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(40));
            cancel.cancel();
        })
    };
    let result = session.run_row(Row::extend(sequence, &long), &Control::cancelled_by(&cancel));
    watcher.join().unwrap();
    assert_eq!(kind(result), ErrorKind::Cancelled);
    let position = session.state(sequence).unwrap().position;
    assert!(position < 1000 && position.is_multiple_of(4), "{position}");
    let mut plain = self::session(&ReferenceBackend::new());
    let whole = plain.open().unwrap();
    let expected = feed(&mut *plain, whole, &long[..position + 1]);
    assert_eq!(feed(&mut *session, sequence, &[3]), expected);
}

#[test]
fn an_infinite_bias_leaves_one_token_to_draw() {
    let mut session = session(&ReferenceBackend::new());
    for seed in 0..20 {
        let plan = plan(|p| (p.temperature, p.seed, p.logit_bias) = (1.0, seed, vec![(5, f32::INFINITY)]));
        let sequence = session.open().unwrap();
        let row = Row::next(sequence, &PROMPT, &plan);
        assert_eq!(session.run_row(row, &Control::default()).unwrap().into_token().unwrap().token, 5);
        session.close(sequence).unwrap();
    }
}

#[test]
fn a_stream_passes_the_prompt_length_to_the_engine() {
    let mut session = session(&ReferenceBackend::new());
    let sequence = session.open().unwrap();
    let plan = plan(|p| {
        p.presence_penalty = Some(1e3);
        p.logit_bias = vec![(7, 100.0), (9, 90.0)];
    });
    let stream =
        TokenStream::new(&mut session, sequence, &[7, 9], GenerateOptions::new(3), TokenChoice::Engine(plan));
    let tokens: Vec<_> = stream.unwrap().map(|token| token.unwrap().token).collect();
    // Each once, since what was generated is penalised and the prompt is not.
    assert_eq!(tokens[..2], [7, 9]);
    assert!(![7, 9].contains(&tokens[2]));
}

#[test]
fn invalid_settings_options_and_sources_are_rejected() {
    let (new, source, options) = (ReferenceBackend::new, ReferenceBackend::source(), LoadOptions::default());
    let other = ModelSource::BuiltIn("other".to_owned());
    for (backend, source, options, kind, field) in [
        (
            new(),
            &source,
            options.clone().with_precision(Precision::Fast),
            ErrorKind::Unsupported,
            Some("precision"),
        ),
        (new(), &source, options.clone().with_threads(2), ErrorKind::InvalidInput, Some("threads")),
        (new(), &source, options.clone().with_device("cuda"), ErrorKind::InvalidInput, Some("device")),
        (new(), &source, options.clone().with_capacity(1025), ErrorKind::InvalidInput, Some("capacity")),
        (new().with_vocabulary(1), &source, options.clone(), ErrorKind::InvalidInput, Some("vocabulary")),
        (new().with_chunk(0), &source, options.clone(), ErrorKind::InvalidInput, Some("chunk")),
        (new().with_window(0), &source, options.clone(), ErrorKind::InvalidInput, Some("window")),
        (
            new().with_stop_tokens([64]),
            &source,
            options.clone(),
            ErrorKind::InvalidInput,
            Some("stop_tokens"),
        ),
        (new(), &other, options.clone(), ErrorKind::NotFound, None),
        (new(), &ModelSource::from("models"), options.clone(), ErrorKind::Unsupported, None),
    ] {
        let error = backend.load(source, &options).err().unwrap();
        assert_eq!((error.kind(), error.context("field")), (kind, field), "{error}");
    }
}

#[test]
fn supported_load_options_are_honoured() {
    let options =
        LoadOptions::default().with_capacity(10).with_sequences(3).with_threads(1).with_device("cpu");
    let told: Arc<std::sync::Mutex<Vec<u64>>> = Arc::default();
    let listener = Arc::clone(&told);
    let options = options.with_progress(move |p| listener.lock().unwrap().push(p.total));
    let backend = ReferenceBackend::new().with_vocabulary(100).with_stop_tokens([5, 6]);
    let model = backend.load(&ReferenceBackend::source(), &options).unwrap();
    let (info, capabilities) = (model.info(), model.capabilities());
    assert_eq!((capabilities.context, capabilities.sequences), (10, 3));
    assert_eq!((info.vocabulary_size, &info.stop_tokens[..]), (100, &[5, 6][..]));
    assert_eq!(*told.lock().unwrap(), [1600]);
}
