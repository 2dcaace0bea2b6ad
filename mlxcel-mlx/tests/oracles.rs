//! The engine against transformers' float32 results: logits, tokens, log probabilities, for any prefill
//! chunking and batch composition, with
//! every option.

use crate::support::{Case, cases, load, prefill_logits, relative_error};
use mlxcel_core::{
    Control, GenerateExt, GenerateOptions, Precision, Row, SamplingPlan, SequenceId, SessionOptions,
    StepOutput,
};
use mlxcel_mlx::{MlxBackend, WeightQuantization};

/// Below this margin of the oracle's best logit over its second, a float32 engine may honestly choose the
/// other token.
const HONEST_MARGIN: f32 = 1e-4;

/// Compares generated tokens with the oracle's up to the first difference that its margin excuses.
fn assert_tokens(name: &str, case: &Case, tokens: &[u32], logprobs: &[f32]) {
    for (i, (&token, &logprob)) in tokens.iter().zip(logprobs).enumerate() {
        if token != case.greedy[i] {
            assert!(case.margins[i] < HONEST_MARGIN, "{name}: token {i} is {token}, not {}", case.greedy[i]);
            return;
        }
        let expected = case.logprobs[i];
        assert!((logprob - expected).abs() <= 1e-3, "{name}: logprob {i}: {logprob}, not {expected}");
    }
    assert_eq!(tokens.len(), case.greedy.len(), "{name}");
}

fn exact_matches(engine: &MlxBackend, checkpoint: &str) {
    let model = load(engine, checkpoint, Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for (i, case) in cases(checkpoint).iter().enumerate() {
        let name = format!("{checkpoint} case {i}");
        let logits = prefill_logits(&mut *session, &case.prompt, usize::MAX);
        let error = relative_error(&logits, &case.prefill_logits);
        assert!(error <= 1e-4, "{name}: prefill logits differ by {error}");
        let options = GenerateOptions::new(case.greedy.len());
        let generation = session.generate_greedy(&case.prompt, &options).unwrap();
        assert_tokens(&name, case, &generation.tokens, &generation.logprobs);
    }
}

#[test]
fn storyteller_is_exact() {
    exact_matches(&MlxBackend::new(), "storyteller");
}

#[test]
fn storyteller_in_four_bits_is_exact() {
    exact_matches(&MlxBackend::new(), "storyteller-4bit");
}

#[test]
fn llama_is_exact() {
    exact_matches(&MlxBackend::new(), "llama");
}

#[test]
fn llama_with_linear_rope_is_exact() {
    exact_matches(&MlxBackend::new(), "llama-linear");
}

#[test]
fn mistral_with_its_sliding_window_is_exact() {
    exact_matches(&MlxBackend::new(), "mistral");
    exact_matches(&MlxBackend::new().with_prefill_chunk(7), "mistral");
    exact_matches(&MlxBackend::new().with_prefill_chunk(1), "mistral");
}

#[test]
fn look_ahead_changes_no_token() {
    exact_matches(&MlxBackend::new().with_look_ahead(true), "storyteller");
    exact_matches(&MlxBackend::new().with_look_ahead(true), "mistral");
}

#[test]
fn expanded_weights_are_exact() {
    exact_matches(&MlxBackend::new().with_expanded_weights(true), "storyteller-4bit");
}

#[test]
fn quantizing_at_load_gives_the_bytes_of_mlx_lm() {
    let engine = MlxBackend::new().with_quantization(WeightQuantization::affine(4, 64).unwrap());
    let model = load(&engine, "storyteller", Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for case in &cases("storyteller-4bit") {
        let logits = prefill_logits(&mut *session, &case.prompt, usize::MAX);
        let error = relative_error(&logits, &case.prefill_logits);
        assert!(error <= 1e-4, "prefill logits differ by {error}");
    }
    let plain = load(&MlxBackend::new(), "storyteller", Precision::Exact);
    assert_ne!(model.info().fingerprint, plain.info().fingerprint);
    assert!(model.info().weight_bytes < plain.info().weight_bytes / 2);
}

#[test]
fn packed_products_of_every_mode_match_their_values() {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().zip([32, 64, 32, 64, 32, 64]);
    let affine = affine.map(|(bits, group)| WeightQuantization::affine(bits, group).unwrap());
    let others = [WeightQuantization::mxfp4(), WeightQuantization::mxfp8(), WeightQuantization::nvfp4()];
    let case = &cases("storyteller")[0];
    for quantization in affine.chain(others) {
        let engine = MlxBackend::new().with_quantization(quantization);
        let logits = [engine.clone(), engine.with_expanded_weights(true)].map(|engine| {
            let model = load(&engine, "storyteller", Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            prefill_logits(&mut *session, &case.prompt, usize::MAX)
        });
        let error = relative_error(&logits[0], &logits[1]);
        assert!(error <= 1e-4, "{quantization}: {error}");
    }
}

#[test]
fn native_precision_stays_within_its_rounding() {
    for checkpoint in ["storyteller", "llama", "llama-linear", "mistral", "storyteller-4bit"] {
        let model = load(&MlxBackend::new(), checkpoint, Precision::Native);
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        for (i, case) in cases(checkpoint).iter().enumerate() {
            let logits = prefill_logits(&mut *session, &case.prompt, usize::MAX);
            let error = relative_error(&logits, &case.prefill_logits);
            assert!(error <= 1e-2, "{checkpoint} case {i}: {error}");
        }
    }
}

#[test]
fn chunks_of_any_size_give_the_same_logits() {
    let cases = cases("storyteller");
    let case = cases.iter().max_by_key(|case| case.prompt.len()).unwrap();
    let prompt = &case.prompt[..150];
    let model = load(&MlxBackend::new(), "storyteller", Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let whole = prefill_logits(&mut *session, prompt, usize::MAX);
    for chunk in [1, 7, 64] {
        let error = relative_error(&prefill_logits(&mut *session, prompt, chunk), &whole);
        assert!(error <= 1e-5, "in chunks of {chunk}: {error}");
    }
}

#[test]
fn four_sequences_at_different_positions_match_single_sequence_runs() {
    let cases: Vec<Case> =
        cases("storyteller").into_iter().filter(|case| case.prompt.len() < 200).take(4).collect();
    let plan = SamplingPlan::greedy();
    for look_ahead in [false, true] {
        let model = load(&MlxBackend::new().with_look_ahead(look_ahead), "storyteller", Precision::Exact);
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        // They join one after another: the first is some tokens ahead when the second's prompt comes in the
        // same step.
        let mut running: Vec<(SequenceId, Vec<u32>, Vec<f32>)> = Vec::new();
        for (i, _) in cases.iter().enumerate() {
            let sequence = session.open().unwrap();
            running.push((sequence, Vec::new(), Vec::new()));
            for _ in 0..3 {
                let feeds: Vec<Vec<u32>> = running
                    .iter()
                    .zip(&cases)
                    .map(|((_, tokens, _), case)| {
                        tokens.last().map_or(case.prompt.clone(), |&last| vec![last])
                    })
                    .collect();
                let rows: Vec<_> =
                    running.iter().zip(&feeds).map(|((id, ..), feed)| Row::next(*id, feed, &plan)).collect();
                let mut out = StepOutput::new();
                let before = session.stats();
                session.step(&rows, &Control::default(), &mut out).unwrap();
                let fed = feeds.iter().map(Vec::len).sum::<usize>() as u64;
                assert_eq!(session.stats().passes - before.passes, 1, "{} rows", i + 1);
                assert_eq!(session.stats().tokens - before.tokens, fed);
                for ((_, tokens, logprobs), row) in running.iter_mut().zip(out.take()) {
                    let token = row.unwrap().into_token().unwrap();
                    tokens.push(token.token);
                    logprobs.push(token.logprob);
                }
            }
        }
        for (i, ((_, tokens, logprobs), case)) in running.iter().zip(&cases).enumerate() {
            let mut case = case.clone();
            case.greedy.truncate(tokens.len());
            assert_tokens(&format!("sequence {i}"), &case, tokens, logprobs);
        }
    }
}

/// What runs only where our kernels do not.
mod nightly {
    use super::*;

    #[test]
    fn stock_mlx_operations_are_exact() {
        let engine = MlxBackend::new().with_cpu_kernels(false);
        for checkpoint in ["storyteller", "llama", "llama-linear", "mistral", "storyteller-4bit"] {
            exact_matches(&engine, checkpoint);
        }
        exact_matches(&engine.with_prefill_chunk(7), "mistral");
    }
}
