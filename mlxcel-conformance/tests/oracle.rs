//! Oracles: a model is held against what it says itself, and then against what is a little different.

use std::fs;

use mlxcel_conformance::{Oracle, Outcome, Tolerance, Trace};
use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, Capabilities, Control, ErrorKind, InferenceSession, LoadOptions, Result, Row, SequenceId,
    SequenceState, SessionOptions, SessionStats, StepOutput,
};

const PROMPTS: [&[u32]; 3] = [&[1, 2, 3], &[4], &[5, 6, 7, 8, 9]];

/// An oracle of the reference engine, after `change` has been made to it.
fn recorded(change: impl Fn(&mut Oracle)) -> Oracle {
    let model = ReferenceBackend::new().load(&ReferenceBackend::source(), &LoadOptions::default()).unwrap();
    let case = |prompt: &&[u32]| {
        let trace = Trace::of(&*model, prompt, 6).unwrap();
        let list = |numbers: Vec<f32>| {
            let texts: Vec<_> = numbers.iter().map(f32::to_string).collect();
            format!("[{}]", texts.join(","))
        };
        format!(
            r#"{{"prompt": {prompt:?}, "greedy": {:?}, "logprobs": {}, "margins": {}, "prefill_logits": {}}}"#,
            trace.tokens(),
            list(trace.steps.iter().map(|step| step.logprob).collect()),
            list(trace.steps.iter().map(|step| step.margin.unwrap()).collect()),
            list(trace.prefill_logits.unwrap()),
        )
    };
    let cases: Vec<_> = PROMPTS.iter().map(case).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oracle.json");
    fs::write(&path, format!(r#"{{"cases": [{}]}}"#, cases.join(","))).unwrap();
    let mut oracle = Oracle::read(&path).unwrap();
    change(&mut oracle);
    oracle
}

/// The outcomes of whole prompts, chunks and a batch.
fn outcomes(oracle: &Oracle) -> [Outcome; 3] {
    let model = ReferenceBackend::new().load(&ReferenceBackend::source(), &LoadOptions::default()).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let tolerance = Tolerance::new(1e-4, 1e-4, 1e-4);
    [
        oracle.check(&mut *session, &tolerance).map(drop),
        oracle.check_chunks(&mut *session, &[1, 2, 64], &tolerance),
        oracle.check_batch(&mut *session, &tolerance),
    ]
}

#[test]
fn a_model_is_what_was_recorded_of_it() {
    for outcome in outcomes(&recorded(|_| {})) {
        outcome.unwrap();
    }
    // Fewer cases, and none.
    assert_eq!(recorded(|_| {}).within(9).cases.len(), 2);
    assert!(recorded(|_| {}).within(0).longest().is_err());
}

#[test]
fn another_token_is_a_failure_unless_the_margin_excuses_it() {
    let another = |oracle: &mut Oracle| oracle.cases[2].greedy[1] += 1;
    for outcome in outcomes(&recorded(another)) {
        assert!(outcome.unwrap_err().to_string().contains("token 1 is "));
    }
    let excused = recorded(|oracle| {
        another(oracle);
        oracle.cases[2].margins[1] = 0.0;
    });
    for outcome in outcomes(&excused) {
        outcome.unwrap();
    }
}

#[test]
fn only_a_token_as_likely_as_the_recorded_one_is_excused() {
    let unlikely = recorded(|oracle| {
        let case = &mut oracle.cases[2];
        (case.greedy[1], case.margins[1], case.logprobs[1]) =
            (case.greedy[1] + 1, 0.0, case.logprobs[1] + 1.0);
    });
    for outcome in outcomes(&unlikely) {
        assert!(outcome.unwrap_err().to_string().contains("token 1 is "));
    }
}

#[test]
fn an_oracle_without_cases_is_a_failure() {
    for outcome in outcomes(&recorded(|oracle| oracle.cases.clear())) {
        outcome.unwrap_err();
    }
}

/// A session whose steps have no results.
struct Mute(Box<dyn InferenceSession>);

impl InferenceSession for Mute {
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
        self.0.step(rows, control, out)?;
        out.clear();
        Ok(())
    }
    fn stats(&self) -> SessionStats {
        self.0.stats()
    }
}

#[test]
fn an_engine_without_results_is_a_failure() {
    let model = ReferenceBackend::new().load(&ReferenceBackend::source(), &LoadOptions::default()).unwrap();
    let mut session = Mute(model.open_session(&SessionOptions::default()).unwrap());
    let outcome = recorded(|_| {}).check_batch(&mut session, &Tolerance::new(1e-4, 1e-4, 1e-4));
    assert!(outcome.unwrap_err().to_string().contains("0 results"));
}

#[test]
fn other_numbers_are_failures() {
    let [whole, chunks, _] = outcomes(&recorded(|oracle| oracle.cases[2].prefill_logits[3] += 0.1));
    assert!(whole.unwrap_err().to_string().starts_with("case 2: logits differ by "));
    assert!(chunks.unwrap_err().to_string().starts_with("in chunks of 1: logits differ by "));
    let [whole, chunks, batch] = outcomes(&recorded(|oracle| oracle.cases[2].logprobs[1] += 0.1));
    for outcome in [whole, chunks, batch] {
        assert!(outcome.unwrap_err().to_string().contains("log probability 1 is "));
    }
    let [whole, ..] = outcomes(&recorded(|oracle| oracle.cases[0].prefill_logits.truncate(1)));
    assert!(whole.unwrap_err().to_string().contains(" logits, not "));
}

#[test]
fn a_file_that_is_no_oracle_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oracle.json");
    assert_eq!(Oracle::read(&path).unwrap_err().kind(), ErrorKind::Io);
    fs::write(&path, "[]").unwrap();
    let error = Oracle::read(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.context("path").unwrap().ends_with("oracle.json"));
}
