//! Hidden states that rows return, and draft heads that read them.

use mlxcel_core::{ModelPart, Pooling, SequenceId};

use super::*;

/// The folder of a checkpoint with a draft head.
fn with_head(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/draft-heads").join(name)
}

/// Some tokens.
fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|index| (index * 37 + 11) % 128).collect()
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact).with_capacity(160)
}

/// The model of a checkpoint, whose rows return hidden states, and its draft head.
fn load_both(engine: &MlxBackend, name: &str) -> [Arc<dyn Model>; 2] {
    let states = options().with_output_states(true);
    [states, options().with_part(ModelPart::DraftHead)]
        .map(|options| engine.load(&with_head(name).into(), &options).unwrap())
}

/// Engines that split passes or compute in different ways.
fn engines() -> [MlxBackend; 3] {
    let plain = MlxBackend::new();
    [
        plain.clone(),
        plain.clone().with_prefill_chunk(3).with_look_ahead(true),
        plain.with_cpu_kernels(false).with_look_ahead(true),
    ]
}

fn open(model: &dyn Model) -> (Box<dyn InferenceSession>, SequenceId) {
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    (session, sequence)
}

/// The results of a step, each with the hidden states that it returned.
fn step(session: &mut dyn InferenceSession, rows: &[Row<'_>]) -> Vec<(RowResult, Option<Vec<f32>>)> {
    let mut out = StepOutput::new();
    session.step(rows, &Control::default(), &mut out).unwrap();
    let results = out.take().into_iter().enumerate();
    results.map(|(row, result)| (result.unwrap(), out.take_states(row))).collect()
}

/// The hidden states of the tokens of a row.
fn states(session: &mut dyn InferenceSession, row: Row<'_>) -> Vec<f32> {
    step(session, &[row]).remove(0).1.unwrap()
}

/// The logits after a row.
fn logits(session: &mut dyn InferenceSession, row: Row<'_>) -> Vec<f32> {
    session.run_row(row, &Control::default()).unwrap().into_logits().unwrap()
}

/// The hidden states of `tokens`, each computed with those before it; a draft head reads `states`.
fn states_by_prefix(model: &dyn Model, tokens: &[u32], states: &[f32]) -> Vec<f32> {
    let width = model.capabilities().input_states.unwrap_or(0);
    let of = |count: usize| {
        let (mut session, sequence) = open(model);
        let row = Row::hidden(sequence, &tokens[..count], Pooling::Last);
        match session.run_row(row.with_states(&states[..count * width]), &Control::default()).unwrap() {
            RowResult::Hidden(state) => state,
            other => panic!("{other:?} instead of a state"),
        }
    };
    (1..=tokens.len()).flat_map(of).collect()
}

#[track_caller]
fn assert_close(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    let worst = actual.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn rows_return_the_states_of_their_tokens() {
    let (tokens, other) = (tokens(14), tokens(9).into_iter().rev().collect::<Vec<_>>());
    let greedy = SamplingPlan::greedy();
    for name in ["qwen3_5_text", "deepseek_v3", "mistral"] {
        for engine in engines() {
            let model = engine.load(&folder(name).into(), &options().with_output_states(true)).unwrap();
            let width = model.capabilities().output_states.unwrap();
            let [expected, others] = [&tokens, &other].map(|tokens| states_by_prefix(&*model, tokens, &[]));

            // With any other result.
            let wants = [Want::nothing(), Want::logits(), Want::token(&greedy), Want::likelihoods(2)];
            for want in wants.into_iter().chain([Want::logits().with_drafts(4)]) {
                let (mut session, sequence) = open(&*model);
                assert_close(
                    &states(&mut *session, Row::new(sequence, &tokens, want.with_states())),
                    &expected,
                );
            }

            // In several rows, some of which return none.
            let (mut session, sequence) = open(&*model);
            let nothing = Want::nothing().with_states();
            for (range, returns) in [(0..5, true), (5..6, false), (6..13, true), (13..14, true)] {
                let want = if returns { nothing } else { Want::token(&greedy) };
                let row = Row::new(sequence, &tokens[range.clone()], want);
                let own = step(&mut *session, &[row]).remove(0).1;
                assert_eq!(own.is_some(), returns);
                assert_close(
                    &own.unwrap_or_default(),
                    if returns { &expected[range.start * width..range.end * width] } else { &[] },
                );
            }

            // Batched, also with a row that returns none.
            let [second, third] = [(); 2].map(|()| session.open().unwrap());
            session.close(sequence).unwrap();
            let sequence = session.open().unwrap();
            let rows = [
                Row::new(second, &other, Want::token(&greedy).with_states()),
                Row::next(third, &tokens, &greedy),
                Row::new(sequence, &tokens, nothing),
            ];
            let [a, b, c] = <[_; 3]>::try_from(step(&mut *session, &rows)).unwrap();
            assert_close(&a.1.unwrap(), &others);
            assert!(b.1.is_none());
            assert_close(&c.1.unwrap(), &expected);
        }
    }
}

#[test]
fn tokens_that_are_computed_again_return_no_states() {
    let tokens = tokens(14);
    let greedy = SamplingPlan::greedy();
    for engine in engines() {
        let model = engine.load(&folder("qwen3_5_text").into(), &options().with_output_states(true)).unwrap();
        let expected = states_by_prefix(&*model, &tokens, &[]);
        let width = expected.len() / tokens.len();
        let (mut session, sequence) = open(&*model);
        states(&mut *session, Row::new(sequence, &tokens[..6], Want::token(&greedy).with_states()));
        let drafts = [&tokens[6..9], &[1, 2, 3]].concat();
        let row = Row::new(sequence, &drafts, Want::token(&greedy).with_drafts(5).with_states());
        assert_close(&states(&mut *session, row)[..3 * width], &expected[6 * width..9 * width]);
        // The recurrent states are those before the row.
        session.rewind(sequence, 9).unwrap();
        let row = Row::new(sequence, &tokens[9..], Want::nothing().with_states());
        assert_close(&states(&mut *session, row), &expected[9 * width..]);
    }
}

#[test]
fn rows_without_states_are_the_same_on_models_that_return_states() {
    let greedy = SamplingPlan::greedy();
    for engine in engines() {
        let generate = |options: &LoadOptions| {
            let model = engine.load(&folder("qwen3_5_text").into(), options).unwrap();
            let (mut session, sequence) = open(&*model);
            let (mut next, mut chosen) = (tokens(9), Vec::new());
            for _ in 0..12 {
                let row = Row::next(sequence, &next, &greedy);
                let token = session.run_row(row, &Control::default()).unwrap().into_token().unwrap();
                chosen.push(token.token);
                next = vec![token.token];
            }
            chosen
        };
        assert_eq!(generate(&options().with_output_states(true)), generate(&options()));
    }
}

#[test]
fn draft_heads_read_states() {
    let tokens = tokens(14);
    let greedy = SamplingPlan::greedy();
    let cases = ["qwen3_5_text", "deepseek_v3"].into_iter().flat_map(|name| engines().map(|own| (name, own)));
    for (name, engine) in cases {
        let [model, head] = load_both(&engine, name);
        let width = model.capabilities().output_states.unwrap();
        let claimed = head.capabilities();
        assert_eq!((claimed.input_states, claimed.output_states), (Some(width), Some(width)));
        assert!(claimed.rewind && model.capabilities().input_states.is_none());
        let read = states_by_prefix(&*model, &tokens, &[]);
        // Each token with the state of the one before it.
        let (fed, read) = (&tokens[1..], &read[..(tokens.len() - 1) * width]);
        let expected = states_by_prefix(&*head, fed, read);
        let row = |sequence, range: Range<usize>, want| {
            let states = &read[range.start * width..range.end * width];
            Row::new(sequence, &fed[range], want).with_states(states)
        };

        let (mut session, sequence) = open(&*head);
        let all = 0..fed.len();
        assert_close(
            &states(&mut *session, row(sequence, all.clone(), Want::logits().with_states())),
            &expected,
        );
        let stats = session.stats();
        assert!(stats.uploaded_bytes >= 4 * ((width + 1) * fed.len()) as u64, "{stats:?}");
        let sequence = session.open().unwrap();
        let whole = logits(&mut *session, row(sequence, all.clone(), Want::logits()));
        let other = session.open().unwrap();
        let zeros = vec![0.0; read.len()];
        let without = logits(&mut *session, Row::logits(other, fed).with_states(&zeros));
        assert!(whole.iter().zip(&without).any(|(a, b)| (a - b).abs() > 0.01), "the states are not read");

        // In several rows, with draft tokens that are rewound, and batched.
        let [sequence, other] = [(); 2].map(|()| session.open().unwrap());
        step(&mut *session, &[row(sequence, 0..5, Want::token(&greedy)), row(other, 0..9, Want::nothing())]);
        let drafts = row(sequence, 5..9, Want::token(&greedy).with_drafts(2).with_states());
        assert_close(&states(&mut *session, drafts), &expected[5 * width..9 * width]);
        session.rewind(sequence, 7).unwrap();
        let last = fed.len() - 1;
        let rows = [
            row(other, 9..last + 1, Want::logits().with_states()),
            row(sequence, 7..last, Want::nothing().with_states()),
        ];
        let [first, second] = <[_; 2]>::try_from(step(&mut *session, &rows)).unwrap();
        assert_close(&first.1.unwrap(), &expected[9 * width..]);
        assert_close(&first.0.into_logits().unwrap(), &whole);
        assert_close(&second.1.unwrap(), &expected[7 * width..last * width]);
        // As it was, and restored.
        let snapshot = session.snapshot(sequence).unwrap();
        let restored = session.restore(&snapshot).unwrap();
        for sequence in [sequence, restored] {
            assert_close(&logits(&mut *session, row(sequence, last..last + 1, Want::logits())), &whole);
        }
    }
}

#[test]
fn snapshots_of_draft_heads_and_of_their_models_are_not_exchanged() {
    let [model, head] = load_both(&MlxBackend::new(), "qwen3_5_text");
    let snapshots = [&model, &head].map(|model| {
        let (mut session, sequence) = open(&**model);
        session.snapshot(sequence).unwrap()
    });
    for (from, to) in [(0, &head), (1, &model)] {
        let (mut session, _) = open(&**to);
        let error = session.restore(&snapshots[from]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.context("field"), Some("state"));
    }
}

#[test]
fn draft_heads_that_cannot_be_loaded_or_fed_are_errors() {
    let head = options().with_part(ModelPart::DraftHead);
    let engine = MlxBackend::new();
    for (name, kind) in [("llama", ErrorKind::Unsupported), ("qwen3_5_text", ErrorKind::NotFound)] {
        let source = folder(name).into();
        assert_eq!(engine.load(&source, &head).map(drop).unwrap_err().kind(), kind, "{name}");
        assert_eq!(engine.estimate(&source, &head).unwrap_err().kind(), kind, "{name}");
    }
    let weights = |options| engine.estimate(&with_head("qwen3_5_text").into(), options).unwrap().weights;
    assert!(weights(&head) < weights(&options()), "there is one layer");
    let model = engine.load(&with_head("qwen3_5_text").into(), &head).unwrap();
    let (mut session, sequence) = open(&*model);
    let error = session.run_row(Row::extend(sequence, &[5, 6]), &Control::default()).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("states")));
}
