//! Every family's checkpoint against transformers' float32 results, for any prefill chunking and batch
//! composition.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::support::{load, oracle, relative_error};
use mlxcel_conformance::{Tolerance, prefill_logits};
use mlxcel_core::{Precision, SessionOptions};
use mlxcel_mlx::{MlxBackend, WeightQuantization};

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

#[test]
fn quantized_products_of_every_architecture_match_their_values() {
    let engine = MlxBackend::new().with_quantization(WeightQuantization::affine(8, 32).unwrap());
    for_each_architecture(|name| {
        let case = &oracle(name).cases[0];
        let expanded = engine.clone().with_expanded_weights(true);
        let logits = [&engine, &expanded].map(|engine| {
            let model = load(engine, name, Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            prefill_logits(&mut *session, &case.prompt, usize::MAX).unwrap()
        });
        let error = relative_error(&logits[0], &logits[1]);
        assert!(error <= 1e-4, "{name}: {error}");
        assert!(relative_error(&logits[0], &case.prefill_logits) > 1e-5, "{name}: nothing is quantized");
    });
}

/// The test `architectures` of all engines is the same with our kernels.
mod nightly {
    use super::*;

    #[test]
    fn every_architecture_is_exact_with_stock_mlx_operations() {
        let engine = MlxBackend::new().with_cpu_kernels(false).with_look_ahead(true);
        for_each_architecture(|name| {
            let model = load(&engine, name, Precision::Exact);
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            let checked = oracle(name).check(&mut *session, &Tolerance::RANDOM_WEIGHTS);
            checked.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        });
    }
}
