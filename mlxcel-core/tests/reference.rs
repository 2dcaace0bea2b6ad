//! The reference engine, held to the contract.

use std::sync::Arc;
use std::time::Duration;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, CancelToken, Capabilities, Control, ErrorKind, FaultPoint, Faults, GenerateOptions,
    InferenceSession, InferenceSessionExt, LoadOptions, Model, ModelInfo, ModelSource, Precision, Result,
    Row, RowResult, SampledToken, SamplingFields, SamplingParams, SamplingPlan, SequenceId, SessionOptions,
    Snapshot, StateIdentity, StepOutput, TokenChoice, TokenId, TokenMask, TokenStream, Want,
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

fn next(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    plan: &SamplingPlan,
) -> SampledToken {
    session.run_row(Row::next(sequence, tokens, plan), &Control::default()).unwrap().into_token().unwrap()
}

#[test]
fn logits_are_equal_for_any_prefill_chunking() {
    let mut session = session(&ReferenceBackend::new());
    let whole = session.open().unwrap();
    let expected = feed(&mut *session, whole, &PROMPT);
    for cut in [1, 7, 16, 39] {
        let sequence = session.open().unwrap();
        let mut last = Vec::new();
        for part in PROMPT.chunks(cut) {
            last = feed(&mut *session, sequence, part);
        }
        assert_eq!(last, expected, "in parts of {cut}");
        session.close(sequence).unwrap();
    }
}

#[test]
fn rows_of_a_step_are_independent_and_share_passes() {
    let mut session = session(&ReferenceBackend::new());
    let [a, b, c, alone] = [(); 4].map(|()| session.open().unwrap());
    let before = session.stats().passes;
    let rows = [Row::logits(a, &PROMPT), Row::logits(b, &PROMPT[..1]), Row::extend(c, &PROMPT[..20])];
    let results = step(&mut *session, &rows);
    assert_eq!(session.stats().passes - before, 3, "40 tokens in chunks of 16, the others ride along");
    assert_eq!(results[2].as_ref().unwrap(), &RowResult::Extended);
    let expected = feed(&mut *session, alone, &PROMPT[..1]);
    assert_eq!(results[1].as_ref().unwrap(), &RowResult::Logits(vec![expected]));
    let narrow = Capabilities::new(8, 64).with_batch_rows(1);
    let mut narrow = self::session(&ReferenceBackend::new().with_capabilities(narrow));
    let rows = [(); 3].map(|()| Row::extend(narrow.open().unwrap(), &PROMPT[..1]));
    step(&mut *narrow, &rows);
    assert_eq!(narrow.stats().passes, 3);
}

#[test]
fn rewind_fork_snapshot_and_restore_compute_nothing_and_change_no_later_token() {
    let mut session = session(&ReferenceBackend::new());
    let straight = session.open().unwrap();
    let expected = feed(&mut *session, straight, &PROMPT);
    let sequence = session.open().unwrap();
    feed(&mut *session, sequence, &PROMPT[..30]);
    let computed = session.stats();
    let fork = session.fork(sequence).unwrap();
    let snapshot = session.snapshot(sequence).unwrap();
    let restored = session.restore(&Snapshot::from_bytes(&snapshot.to_bytes()).unwrap()).unwrap();
    session.rewind(sequence, 10).unwrap();
    assert_eq!((session.stats().tokens, session.stats().passes), (computed.tokens, computed.passes));
    assert_eq!(session.state(sequence).unwrap().position, 10);
    feed(&mut *session, sequence, &[9, 9]);
    session.rewind(sequence, 10).unwrap();
    assert_eq!(feed(&mut *session, sequence, &PROMPT[10..]), expected);
    assert_eq!(feed(&mut *session, fork, &PROMPT[30..]), expected);
    assert_eq!(feed(&mut *session, restored, &PROMPT[30..]), expected);
    assert_eq!(kind(session.rewind(fork, 41)), ErrorKind::InvalidInput);
}

#[test]
fn foreign_oversized_or_corrupt_snapshots_are_rejected() {
    let backend = ReferenceBackend::new();
    let mut session = session(&backend);
    let sequence = session.open().unwrap();
    feed(&mut *session, sequence, &PROMPT);
    let snapshot = session.snapshot(sequence).unwrap();
    let mut other = self::session(&backend.clone().with_weights_seed(1));
    assert_eq!(other.restore(&snapshot).unwrap_err().context("field"), Some("model"));
    let short = SessionOptions::default().with_capacity(39);
    let mut short = backend.model().unwrap().open_session(&short).unwrap();
    assert_eq!(kind(short.restore(&snapshot)), ErrorKind::InvalidInput);
    let mut damaged = snapshot.payload().to_vec();
    damaged[20] ^= 1;
    for payload in [damaged, snapshot.payload()[..479].to_vec(), Vec::new()] {
        let damaged = Snapshot::new(snapshot.identity().clone(), snapshot.position(), payload);
        assert_eq!(kind(session.restore(&damaged)), ErrorKind::Corrupt);
    }
}

#[test]
fn invalid_rows_are_rejected_before_any_work_and_others_run() {
    let mut session = session(&ReferenceBackend::new());
    let (a, b) = (session.open().unwrap(), session.open().unwrap());
    assert_eq!(kind(session.step(&[], &Control::default(), &mut StepOutput::new())), ErrorKind::InvalidInput);
    let long = vec![1; 1025];
    let host = plan(|p| p.seed = 1);
    let rows = [
        Row::extend(a, &[1]),
        Row::extend(a, &[1]),
        Row::extend(SequenceId::new(99), &[1]),
        Row::extend(b, &[]),
        Row::extend(b, &[64]),
        Row::extend(b, &long),
        Row::next(b, &[1], &host),
    ];
    let results = step(&mut *session, &rows);
    let kinds: Vec<_> = results.iter().map(|row| row.as_ref().err().map(|error| error.kind())).collect();
    let wrong = Some(ErrorKind::InvalidInput);
    assert_eq!(kinds, [None, wrong, Some(ErrorKind::NotFound), wrong, wrong, wrong, wrong]);
    assert_eq!(session.state(b).unwrap().position, 0);
    assert_eq!(kind(step(&mut *session, &[Row::extend(b, &long)]).remove(0)), ErrorKind::CapacityExceeded);
    feed(&mut *session, b, &long[..1024]);
    assert_eq!(session.state(b).unwrap().remaining(), 0);
    assert_eq!(kind(step(&mut *session, &[Row::extend(b, &[1])]).remove(0)), ErrorKind::CapacityExceeded);
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

/// The engine, failing at `point` after it went well `good` times.
fn failing(point: FaultPoint, good: u64) -> ReferenceBackend {
    ReferenceBackend::new().with_faults(Faults::new(point, good))
}

#[test]
fn a_device_fault_poisons_the_rows_that_ran_until_they_are_closed() {
    let mut session = session(&failing(FaultPoint::Dispatch, 1));
    let [a, b, c] = [(); 3].map(|()| session.open().unwrap());
    feed(&mut *session, a, &[1]);
    let refused = Row::extend(c, &[64]);
    let results = step(&mut *session, &[Row::extend(a, &[2]), Row::extend(b, &PROMPT), refused]);
    let kinds: Vec<_> = results.into_iter().map(kind).collect();
    assert_eq!(kinds, [ErrorKind::Device, ErrorKind::Device, ErrorKind::InvalidInput]);
    assert!(session.state(a).unwrap().poisoned && session.state(b).unwrap().poisoned);
    assert!(!session.state(c).unwrap().poisoned);
    assert_eq!(kind(step(&mut *session, &[Row::extend(a, &[2])]).remove(0)), ErrorKind::Poisoned);
    assert_eq!(kind(session.rewind(a, 0)), ErrorKind::Poisoned);
    assert_eq!(kind(session.fork(a)), ErrorKind::Poisoned);
    assert_eq!(kind(session.snapshot(a)), ErrorKind::Poisoned);
    session.close(a).unwrap();
    let again = session.open().unwrap();
    assert_ne!(again, a, "numbers are not used again");
    assert_eq!(feed(&mut *session, again, &[1]), feed(&mut *session, c, &[1]));
}

#[test]
fn faults_occur_at_the_requested_point() {
    for point in [FaultPoint::Dispatch, FaultPoint::ReadBack] {
        let mut session = session(&failing(point, 1));
        let (short, long) = (session.open().unwrap(), session.open().unwrap());
        let results = step(&mut *session, &[Row::extend(short, &[1]), Row::extend(long, &PROMPT)]);
        assert!(results[0].is_ok(), "it was done in the first pass");
        assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Device);
    }

    assert_eq!(
        failing(FaultPoint::Allocation, 0).model().err().unwrap().kind(),
        ErrorKind::ResourceExhausted
    );
    let mut session = session(&failing(FaultPoint::Allocation, 1));
    let sequence = session.open().unwrap();
    let row = [Row::extend(sequence, &[1])];
    assert_eq!(kind(step(&mut *session, &row).remove(0)), ErrorKind::ResourceExhausted);
    assert_eq!(session.state(sequence).unwrap().position, 0);
    step(&mut *session, &row).remove(0).unwrap();
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
fn every_position_and_most_likely_tokens_agree_with_the_logits() {
    let mut session = session(&ReferenceBackend::new());
    let scored = session.open().unwrap();
    let row = Row::new(scored, &PROMPT, Want::likelihoods(64));
    let RowResult::Likelihoods(positions) = session.run_row(row, &Control::default()).unwrap() else {
        panic!()
    };
    let sequence = session.open().unwrap();
    for (index, position) in positions.iter().enumerate() {
        let logits = feed(&mut *session, sequence, &PROMPT[index..=index]);
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits[position.best.token as usize], best);
        assert_eq!(position.top[0], position.best);
        let sum: f64 = position.top.iter().map(|entry| f64::from(entry.logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        let following = PROMPT
            .get(index + 1)
            .map(|token| position.top.iter().find(|entry| entry.token == *token).unwrap().logprob);
        assert_eq!(position.following, following);
    }
}

#[test]
fn each_sampling_field_limits_or_moves_the_choice() {
    let mut session = session(&ReferenceBackend::new());
    let base = session.open().unwrap();
    let logits = feed(&mut *session, base, &PROMPT);
    let mut order: Vec<TokenId> = (0..64).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    let mut drawn = |change: &dyn Fn(&mut SamplingParams)| -> Vec<TokenId> {
        let mut tokens: Vec<_> = (0..200)
            .map(|seed| {
                let plan = plan(|p| {
                    (p.temperature, p.seed) = (1.0, seed);
                    change(p);
                });
                session.rewind(base, 39).unwrap();
                next(&mut *session, base, &PROMPT[39..], &plan).token
            })
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    };
    let sorted = |tokens: &[TokenId]| {
        let mut tokens = tokens.to_vec();
        tokens.sort_unstable();
        tokens
    };
    assert!(drawn(&|_| ()).len() > 10, "seeds differ");
    assert_eq!(drawn(&|p| p.top_k = Some(3)), sorted(&order[..3]));
    assert_eq!(drawn(&|p| p.top_p = Some(1e-6)), order[..1]);
    assert_eq!(drawn(&|p| p.min_p = Some(1.0)), order[..1]);
    assert_eq!(drawn(&|p| p.temperature = 1e-6), order[..1]);
    assert_eq!(drawn(&|p| p.logit_bias = vec![(5, f32::INFINITY)]), [5]);
    let banned: Vec<_> = order[..10].iter().map(|&token| (token, f32::NEG_INFINITY)).collect();
    let rest = drawn(&|p| p.logit_bias.clone_from(&banned));
    assert!(rest.iter().all(|token| !order[..10].contains(token)));
}

#[test]
fn presence_and_frequency_penalties_exclude_the_prompt() {
    let mut session = session(&ReferenceBackend::new());
    let sequence = session.open().unwrap();
    let greedy = next(&mut *session, sequence, &PROMPT, &SamplingPlan::greedy()).token;
    let prompt = [&[greedy][..], &PROMPT].concat();
    // The token that would follow is now in the sequence: as prompt, then as generated text.
    let token_after = |session: &mut dyn InferenceSession, plan: &SamplingPlan| {
        let sequence = session.open().unwrap();
        let token = next(session, sequence, &prompt, plan).token;
        session.close(sequence).unwrap();
        token
    };
    let bias = |p: &mut SamplingParams| p.logit_bias = vec![(greedy, 100.0)];
    assert_eq!(token_after(&mut *session, &plan(bias)), greedy);
    for penalise in [(|p| p.presence_penalty = Some(200.0)) as fn(&mut SamplingParams), |p| {
        p.frequency_penalty = Some(200.0)
    }] {
        let plan = plan(|p| {
            bias(p);
            penalise(p);
        });
        assert_ne!(token_after(&mut *session, &plan), greedy);
        assert_eq!(token_after(&mut *session, &plan.with_prompt_length(prompt.len())), greedy);
    }
    // This one reads all of the sequence.
    let repetition = plan(|p| {
        bias(p);
        p.repetition_penalty = Some(1e6);
    });
    assert_ne!(token_after(&mut *session, &repetition.with_prompt_length(prompt.len())), greedy);
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
fn masks_limit_the_choice_and_empty_masks_are_rejected_before_any_work() {
    let mut session = session(&ReferenceBackend::new());
    let sequence = session.open().unwrap();
    let greedy = SamplingPlan::greedy();
    let mask = TokenMask::allowing(64, [11, 12]);
    let row = |mask, plan| {
        Row::new(sequence, &PROMPT[..1], Want::token(plan).with_masks(std::slice::from_ref(mask)).with_top(2))
    };
    let token = step(&mut *session, &[row(&mask, &greedy)]).remove(0).unwrap().into_token().unwrap();
    assert!([11, 12].contains(&token.token) && token.top.len() == 2);
    let forbidden = plan(|p| p.logit_bias = [11, 12].map(|token| (token, f32::NEG_INFINITY)).to_vec());
    for (mask, plan) in
        [(&TokenMask::none(64), &greedy), (&TokenMask::allowing(63, [1]), &greedy), (&mask, &forbidden)]
    {
        assert_eq!(kind(step(&mut *session, &[row(mask, plan)]).remove(0)), ErrorKind::InvalidInput);
    }
    assert_eq!(session.state(sequence).unwrap().position, 1);
}

#[test]
fn unsupported_load_options_are_rejected_by_field() {
    let backend = ReferenceBackend::new();
    let refuse = |options: LoadOptions, kind: ErrorKind, field: &str| {
        let error = backend.load(&ReferenceBackend::source(), &options).err().unwrap();
        assert_eq!((error.kind(), error.context("field")), (kind, Some(field)));
    };
    refuse(LoadOptions::default().with_precision(Precision::Fast), ErrorKind::Unsupported, "precision");
    refuse(LoadOptions::default().with_threads(2), ErrorKind::InvalidInput, "threads");
    refuse(LoadOptions::default().with_threads(0), ErrorKind::InvalidInput, "threads");
    refuse(LoadOptions::default().with_device("cuda"), ErrorKind::InvalidInput, "device");
    refuse(LoadOptions::default().with_capacity(1025), ErrorKind::InvalidInput, "capacity");
    refuse(LoadOptions::default().with_capacity(0), ErrorKind::InvalidInput, "capacity");
    refuse(LoadOptions::default().with_sequences(0), ErrorKind::InvalidInput, "sequences");
    for (backend, field) in [
        (ReferenceBackend::new().with_vocabulary(1), "vocabulary"),
        (ReferenceBackend::new().with_chunk(0), "chunk"),
        (ReferenceBackend::new().with_stop_tokens([64]), "stop_tokens"),
    ] {
        assert_eq!(backend.model().err().unwrap().context("field"), Some(field));
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    let load =
        |source: &ModelSource, options: &LoadOptions| backend.load(source, options).err().unwrap().kind();
    let cancelled = LoadOptions::default().with_cancel(cancel);
    assert_eq!(load(&ReferenceBackend::source(), &cancelled), ErrorKind::Cancelled);
    let default = LoadOptions::default();
    assert_eq!(load(&ModelSource::BuiltIn("other".to_owned()), &default), ErrorKind::NotFound);
    assert_eq!(load(&ModelSource::from("models"), &default), ErrorKind::Unsupported);
}

#[test]
fn supported_load_options_are_honoured() {
    let options = LoadOptions::default()
        .with_capacity(10)
        .with_sequences(3)
        .with_threads(1)
        .with_device("cpu")
        .with_precision(Precision::Exact);
    let backend = ReferenceBackend::new().with_vocabulary(100).with_stop_tokens([5, 6]);
    let model = backend.load(&ReferenceBackend::source(), &options).unwrap();
    let (info, capabilities) = (model.info(), model.capabilities());
    assert_eq!((info.capacity, info.precision, info.vocabulary_size), (10, Precision::Exact, 100));
    assert_eq!(info.stop_tokens, [5, 6]);
    assert_eq!((capabilities.context, capabilities.sequences), (10, 3));
    assert_ne!(info.fingerprint, backend.clone().with_weights_seed(1).model().unwrap().info().fingerprint);
    let told: Arc<std::sync::Mutex<Vec<u64>>> = Arc::default();
    let listener = Arc::clone(&told);
    let options = LoadOptions::default().with_progress(move |p| listener.lock().unwrap().push(p.total));
    backend.load(&ReferenceBackend::source(), &options).unwrap();
    assert_eq!(*told.lock().unwrap(), [1600]);
    assert_eq!(SamplingFields::NONE, Capabilities::new(1, 1).sampling);
}
