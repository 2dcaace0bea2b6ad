//! Draft heads on every engine against transformers' `MtpModel`: the main model's hidden states, the head's
//! logits and states, and chains of drafts; whole, in chunks, batched and rewound.

use std::path::Path;

use crate::common::draft_heads::{DraftCase, DraftOracle, checkpoints, expect_rows, is_alone};
use crate::support::{CAPACITY, engines_and_plugin, is_wanted, spares};
use mlxcel_conformance::{Oracle, Tolerance};
use mlxcel_core::{
    Backend, Control, Error, ErrorKind, InferenceSession, LoadOptions, Model, ModelPart, Precision, Result,
    Row, RowResult, SamplingPlan, SequenceId, SessionOptions, StepOutput, Want,
};

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact).with_capacity(CAPACITY).with_sequences(2)
}

/// The results of rows, each with its states.
fn step(session: &mut dyn InferenceSession, rows: &[Row<'_>]) -> Vec<Result<(RowResult, Option<Vec<f32>>)>> {
    let mut out = StepOutput::new();
    session.step(rows, &Control::default(), &mut out).unwrap();
    let results = out.take().into_iter().enumerate();
    results.map(|(row, result)| result.map(|result| (result, out.take_states(row)))).collect()
}

fn run(session: &mut dyn InferenceSession, row: Row<'_>) -> Result<(RowResult, Option<Vec<f32>>)> {
    step(session, &[row]).remove(0)
}

/// The logits and states of a row of a head.
fn draft(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[u32],
    states: &[f32],
) -> [Vec<f32>; 2] {
    let row = Row::new(sequence, tokens, Want::logits().with_states()).with_states(states);
    let (result, states) = run(session, row).unwrap();
    [result.into_logits().unwrap(), states.unwrap()]
}

fn check_main(name: &str, model: &dyn Model, cases: &[DraftCase], few: bool) {
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let width = cases[0].states[0].len();
    assert_eq!(
        (session.capabilities().output_states, session.capabilities().input_states),
        (Some(width), None)
    );
    let wants = Want::nothing().with_states();
    for case in cases {
        for chunk in [usize::MAX, 7, 1] {
            let sequence = session.open().unwrap();
            let mut states = Vec::new();
            for tokens in case.prompt.chunks(chunk) {
                states.extend(run(&mut *session, Row::new(sequence, tokens, wants)).unwrap().1.unwrap());
            }
            session.close(sequence).unwrap();
            expect_rows(&format!("{name}, in chunks of {chunk}"), states.chunks_exact(width), &case.states);
        }
    }
    let [mut first, second] = [0, 1].map(|_| session.open().unwrap());
    let wanted = Want::logits().with_states();
    let rows = [Row::new(first, &cases[0].prompt, wanted), Row::new(second, &cases[1].prompt, wants)];
    let results = step(&mut *session, &rows).into_iter().map(|result| result.unwrap());
    for ((result, states), case) in results.zip(cases) {
        assert_eq!(matches!(result, RowResult::Logits(_)), std::ptr::eq(case, &cases[0]));
        expect_rows(&format!("{name}, batched"), states.unwrap().chunks_exact(width), &case.states);
    }
    // States come with every answer, which may need other programs.
    let (plan, longest) = (SamplingPlan::greedy(), &cases[1]);
    let answers = [Want::token(&plan).with_drafts(3), Want::likelihoods(0)];
    for wanted in answers.into_iter().take(if few { 1 } else { 2 }) {
        session.close(first).unwrap();
        first = session.open().unwrap();
        let row = Row::new(first, &longest.prompt, wanted.with_states());
        let states = run(&mut *session, row).unwrap().1.unwrap();
        expect_rows(&format!("{name}, {wanted:?}"), states.chunks_exact(width), &longest.states);
    }
    // Only rows that ask for them have states.
    let rows = [Row::extend(first, &[5, 6]), Row::new(second, &[5, 6], wants)];
    let has_states = step(&mut *session, &rows).into_iter().map(|result| result.unwrap().1.is_some());
    assert_eq!(has_states.collect::<Vec<_>>(), [false, true], "{name}");
    let error = run(&mut *session, Row::extend(first, &[5]).with_states(&cases[0].states[0])).unwrap_err();
    assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Unsupported, Some("input_states")));
}

fn check_head(name: &str, model: &dyn Model, cases: &[DraftCase]) {
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let width = cases[0].states[0].len();
    let capabilities = session.capabilities();
    assert_eq!((capabilities.output_states, capabilities.input_states), (Some(width), Some(width)));
    assert!(capabilities.rewind, "{name}");
    for case in cases {
        let (tokens, fed) = case.fed();
        let last = std::slice::from_ref(case.head.logits.last().unwrap());
        for chunk in [7, 1, usize::MAX] {
            let sequence = session.open().unwrap();
            let chunk = chunk.min(tokens.len());
            let (mut logits, mut states) = (Vec::new(), Vec::new());
            for (tokens, fed) in tokens.chunks(chunk).zip(fed.chunks(chunk * width)) {
                let [own, further] = draft(&mut *session, sequence, tokens, fed);
                logits.push(own);
                states.extend(further);
            }
            let what = format!("{name}, the head in chunks of {chunk}");
            expect_rows(&what, states.chunks_exact(width), &case.head.states);
            let logits: Vec<_> = logits.iter().map(Vec::as_slice).collect();
            if chunk == 1 {
                expect_rows(&what, logits, &case.head.logits);
            } else {
                expect_rows(&what, logits.last().copied(), last);
            }
            check_chain(&what, &mut *session, sequence, case, &states[states.len() - width..]);
            session.close(sequence).unwrap();
        }
    }
    let sequences = [0, 1].map(|_| session.open().unwrap());
    let fed = [0, 1].map(|case: usize| cases[case].fed());
    let rows = [0, 1].map(|row| {
        let wants = Want::logits().with_states();
        Row::new(sequences[row], &fed[row].0, wants).with_states(&fed[row].1)
    });
    for (result, case) in step(&mut *session, &rows).into_iter().zip(cases) {
        let (logits, states) = result.unwrap();
        let last = std::slice::from_ref(case.head.logits.last().unwrap());
        expect_rows(&format!("{name}, batched"), [&logits.into_logits().unwrap()[..]], last);
        expect_rows(&format!("{name}, batched"), states.unwrap().chunks_exact(width), &case.head.states);
    }
    check_refusals(&mut *session, sequences[0], width);
}

/// Drafts after the head has read a case, twice from the same place.
fn check_chain(
    what: &str,
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    case: &DraftCase,
    state: &[f32],
) {
    let start = case.head.states.len();
    for _ in 0..2 {
        let (mut states, mut logits) = (vec![state.to_vec()], Vec::new());
        for &token in &case.chain.tokens[..case.chain.tokens.len() - 1] {
            let [own, next] = draft(session, sequence, &[token], states.last().unwrap());
            logits.push(own);
            states.push(next);
        }
        let rows = |rows: &[Vec<f32>]| rows.to_vec();
        let (states, logits) = (rows(&states[1..]), rows(&logits));
        expect_rows(&format!("{what}, chained"), states.iter().map(Vec::as_slice), &case.chain.states);
        expect_rows(&format!("{what}, chained"), logits.iter().map(Vec::as_slice), &case.chain.logits);
        session.rewind(sequence, start).unwrap();
    }
}

fn check_refusals(session: &mut dyn InferenceSession, sequence: SequenceId, width: usize) {
    for elements in [0, width, 2 * width - 1, 3 * width] {
        let row = Row::extend(sequence, &[5, 6]);
        let error = run(session, row.with_states(&vec![0.5; elements])).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("states")));
    }
    // A refused row changes nothing.
    run(session, Row::extend(sequence, &[5]).with_states(&vec![0.5; width])).unwrap();
}

/// A snapshot of the one is refused by the other.
fn check_snapshots(name: &str, main: &dyn Model, head: &dyn Model, case: &DraftCase) {
    let [mut main, mut head] =
        [main, head].map(|model| model.open_session(&SessionOptions::default()).unwrap());
    let sequences = [main.open().unwrap(), head.open().unwrap()];
    run(&mut *main, Row::extend(sequences[0], &case.prompt)).unwrap();
    let (tokens, fed) = case.fed();
    run(&mut *head, Row::extend(sequences[1], &tokens).with_states(&fed)).unwrap();
    let snapshots = [main.snapshot(sequences[0]).unwrap(), head.snapshot(sequences[1]).unwrap()];
    let errors: [Error; 2] =
        [main.restore(&snapshots[1]).unwrap_err(), head.restore(&snapshots[0]).unwrap_err()];
    assert_eq!(errors.map(|error| error.kind()), [ErrorKind::InvalidInput; 2], "{name}");
    let restored = head.restore(&snapshots[1]).unwrap();
    let state = case.head.states.last().unwrap();
    let [logits, _] = draft(&mut *head, restored, &case.chain.tokens[..1], state);
    expect_rows(&format!("{name}, restored"), [&logits[..]], &case.chain.logits[..1]);
}

/// Checks a model and its draft head, which is in its checkpoint, or in a folder with an oracle in another.
pub(crate) fn check(engine: &dyn Backend, folder: &Path, head: Option<(&Path, &Path)>) {
    let (head, expected) = (head.map(|(head, _)| head), head.map_or(folder, |(_, oracle)| oracle));
    let name = format!("{} {}", engine.name(), head.unwrap_or(folder).file_name().unwrap().to_string_lossy());
    let cases = DraftOracle::of(expected).cases;
    let load = |mut options: LoadOptions| {
        options.draft_head = head.map(Into::into);
        engine.load(&folder.to_owned().into(), &options).unwrap()
    };
    let main = load(options().with_output_states(true));
    check_main(&name, &*main, &cases, spares(engine));
    let head = load(options().with_part(ModelPart::DraftHead));
    check_head(&name, &*head, &cases);
    check_snapshots(&name, &*main, &*head, &cases[0]);
    if spares(engine) {
        return;
    }
    // States beside them change no results.
    if let Ok(oracle) = Oracle::read(expected.join("oracle.json")) {
        let mut session = main.open_session(&SessionOptions::default()).unwrap();
        oracle.check(&mut *session, &Tolerance::RANDOM_WEIGHTS).unwrap();
        oracle.check_chunks(&mut *session, &[7], &Tolerance::RANDOM_WEIGHTS).unwrap();
    }
    let plain = load(options());
    let mut session = plain.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let wanted = Row::new(sequence, &cases[0].prompt, Want::nothing().with_states());
    let error = run(&mut *session, wanted).unwrap_err();
    assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Unsupported, Some("output_states")));
}

#[test]
fn every_draft_head_is_exact_on_every_engine() {
    let folders = [checkpoints("draft-heads"), checkpoints("gguf-draft-heads")].concat();
    for folder in folders.iter().filter(|folder| !is_alone(folder)) {
        for engine in engines_and_plugin() {
            // Engines that compile run one of each kind of attention.
            let few = ["draft-heads/deepseek_v3", "draft-heads/qwen3_5_text"];
            let is_spared = spares(&*engine) && !few.iter().any(|name| folder.ends_with(name));
            if is_wanted(&*engine) && !is_spared {
                check(&*engine, folder, None);
            }
        }
    }
}
