//! What the MLX engine has options for, against transformers' float32 results.

use crate::support::{load, oracle, relative_error};
use mlxcel_conformance::{Tolerance, prefill_logits};
use mlxcel_core::{Precision, SessionOptions};
use mlxcel_mlx::{MlxBackend, WeightQuantization};

fn exact_matches(engine: &MlxBackend, checkpoint: &str) {
    let model = load(engine, checkpoint, Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let checked = oracle(checkpoint).check(&mut *session, &Tolerance::of(Precision::Exact));
    checked.unwrap_or_else(|failure| panic!("{checkpoint}: {failure}"));
}

#[test]
fn a_sliding_window_is_exact_for_any_prefill_chunk() {
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
    for case in &oracle("storyteller-4bit").cases {
        let logits = prefill_logits(&mut *session, &case.prompt, usize::MAX).unwrap();
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
    let case = &oracle("storyteller").cases[0];
    for quantization in affine.chain(others) {
        let engine = MlxBackend::new().with_quantization(quantization);
        let logits = [engine.clone(), engine.with_expanded_weights(true)].map(|engine| {
            let model = load(&engine, "storyteller", Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            prefill_logits(&mut *session, &case.prompt, usize::MAX).unwrap()
        });
        let error = relative_error(&logits[0], &logits[1]);
        assert!(error <= 1e-4, "{quantization}: {error}");
    }
}

#[test]
fn looking_ahead_changes_no_batch() {
    let mut oracle = oracle("storyteller");
    oracle.cases.retain(|case| case.prompt.len() < 200);
    let model = load(&MlxBackend::new().with_look_ahead(true), "storyteller", Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    oracle.check_batch(&mut *session, &Tolerance::of(Precision::Exact)).unwrap();
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
