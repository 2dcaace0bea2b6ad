//! Every family's checkpoint against transformers' float32 results, for any prefill chunking and batch
//! composition.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::support::{Case, cases, load, prefill_logits, relative_error};
use mlxcel_core::{
    Control, GenerateExt, GenerateOptions, InferenceSession, Precision, Row, SamplingPlan, SessionOptions,
    StepOutput,
};
use mlxcel_mlx::{MlxBackend, WeightQuantization};

/// Below this margin of the oracle's best logit over its second, a float32 engine may choose the other token.
const MARGIN: f32 = 1e-3;

/// Runs `check` for every checkpoint, and fails with all that have failed.
fn for_each_architecture(check: impl Fn(&str)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures");
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 37, "{names:?}");
    let failed: Vec<_> =
        names.iter().filter(|name| catch_unwind(AssertUnwindSafe(|| check(name))).is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// Compares generated tokens with the oracle's up to the first difference that its margin excuses.
fn assert_tokens(name: &str, case: &Case, tokens: &[u32], logprobs: &[f32]) {
    for (i, (&token, &logprob)) in tokens.iter().zip(logprobs).enumerate() {
        if token != case.greedy[i] {
            assert!(case.margins[i] < MARGIN, "{name}: token {i} is {token}, not {}", case.greedy[i]);
            return;
        }
        let expected = case.logprobs[i];
        assert!((logprob - expected).abs() <= 3e-3, "{name}: logprob {i}: {logprob}, not {expected}");
    }
    assert_eq!(tokens.len(), case.greedy.len(), "{name}");
}

fn assert_prefill(name: &str, session: &mut dyn InferenceSession, case: &Case, chunk: usize) {
    let error = relative_error(&prefill_logits(session, &case.prompt, chunk), &case.prefill_logits);
    assert!(error <= 1e-3, "{name} in chunks of {chunk}: prefill logits differ by {error}");
}

fn exact(engine: &MlxBackend, name: &str) {
    let model = load(engine, name, Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for (i, case) in cases(name).iter().enumerate() {
        let name = format!("{name} case {i}");
        assert_prefill(&name, &mut *session, case, usize::MAX);
        // Beyond the end-of-sequence id, as the oracle.
        let options = GenerateOptions::new(case.greedy.len()).with_stop_tokens(Vec::new());
        let generation = session.generate_greedy(&case.prompt, &options).unwrap();
        assert_tokens(&name, case, &generation.tokens, &generation.logprobs);
    }
}

#[test]
fn quantized_products_of_every_architecture_match_their_values() {
    let engine = MlxBackend::new().with_quantization(WeightQuantization::affine(8, 32).unwrap());
    for_each_architecture(|name| {
        let case = &cases(name)[0];
        let expanded = engine.clone().with_expanded_weights(true);
        let logits = [&engine, &expanded].map(|engine| {
            let model = load(engine, name, Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            prefill_logits(&mut *session, &case.prompt, usize::MAX)
        });
        let error = relative_error(&logits[0], &logits[1]);
        assert!(error <= 1e-4, "{name}: {error}");
        assert!(relative_error(&logits[0], &case.prefill_logits) > 1e-5, "{name}: nothing is quantized");
    });
}

/// The test `architectures` of all engines has the same on every change, but for stock operations.
mod nightly {
    use super::*;

    #[test]
    fn every_architecture_is_exact() {
        for_each_architecture(|name| exact(&MlxBackend::new(), name));
    }

    #[test]
    fn every_architecture_is_exact_with_stock_mlx_operations() {
        for_each_architecture(|name| {
            exact(&MlxBackend::new().with_cpu_kernels(false).with_look_ahead(true), name)
        });
    }

    #[test]
    fn chunks_of_any_size_give_the_same_logits() {
        for_each_architecture(|name| {
            let cases = cases(name);
            let longest = cases.iter().max_by_key(|case| case.prompt.len()).unwrap();
            let model = load(&MlxBackend::new(), name, Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            for chunk in [1, 7, 64] {
                assert_prefill(name, &mut *session, longest, chunk);
            }
        });
    }

    #[test]
    fn batched_sequences_match_single_sequence_runs() {
        for_each_architecture(|name| {
            let cases = cases(name);
            let model = load(&MlxBackend::new(), name, Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            let plan = SamplingPlan::greedy();
            let sequences: Vec<_> = cases.iter().map(|_| session.open().unwrap()).collect();
            let mut said: Vec<(Vec<u32>, Vec<f32>)> = vec![Default::default(); cases.len()];
            let steps = cases.iter().map(|case| case.greedy.len()).min().unwrap().min(8);
            for _ in 0..steps {
                let fed: Vec<Vec<u32>> = (said.iter().zip(&cases))
                    .map(|((tokens, _), case)| tokens.last().map_or(case.prompt.clone(), |&last| vec![last]))
                    .collect();
                let rows: Vec<_> = sequences
                    .iter()
                    .zip(&fed)
                    .map(|(&sequence, fed)| Row::next(sequence, fed, &plan))
                    .collect();
                let mut out = StepOutput::new();
                session.step(&rows, &Control::default(), &mut out).unwrap();
                for ((tokens, logprobs), row) in said.iter_mut().zip(out.take()) {
                    let token = row.unwrap().into_token().unwrap();
                    tokens.push(token.token);
                    logprobs.push(token.logprob);
                }
            }
            for (i, ((tokens, logprobs), case)) in said.iter().zip(&cases).enumerate() {
                let case = Case { greedy: case.greedy[..steps].to_vec(), ..case.clone() };
                assert_tokens(&format!("{name} case {i}"), &case, tokens, logprobs);
            }
        });
    }
}
