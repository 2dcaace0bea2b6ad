//! Every packed form of published checkpoints on every engine, against what their unpacked weights give in
//! float32.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{Fixture, check_on_engines};
use mlxcel_conformance::{Outcome, Tolerance};
use mlxcel_core::{Backend, Precision, SessionOptions};

/// What MLX's kernels take without expanding a weight.
#[cfg(feature = "mlx")]
const PACKED_ON_MLX: &[&str] = &[
    "awq", "compressed-w4", "gguf-gemma3-q8_0", "gguf-llama-q8_0", "gpt_oss-mxfp4", "gptq", "gptq-act-order",
];

/// What engines that compile run: zero points, scales of scales, experts, and blocks. Their kernels are
/// tested over each packing.
const COMPILED: [&str; 4] = ["awq", "fp8-block", "gguf-llama-q4_k_m", "gpt_oss-mxfp4"];

/// The folders of `fixtures/formats` that have an oracle.
pub(crate) fn folders() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats");
    let mut fixtures = Fixture::all_in(&root);
    fixtures.retain(|fixture| fixture.path.join("oracle.json").exists());
    fixtures
}

fn check(engine: &dyn Backend, fixture: &Fixture) -> Outcome {
    let options = crate::support::options(fixture, Precision::Exact);
    let source = fixture.path.clone().into();
    let model = match engine.load(&source, &options) {
        Ok(model) => model,
        // For packings without kernels, MLX's error names the remedy, which is then applied.
        #[cfg(feature = "mlx")]
        Err(error) if engine.name() == "mlx" && error.kind() == mlxcel_core::ErrorKind::Unsupported => {
            assert!(error.to_string().contains("with_expanded_weights"), "{error}");
            assert!(!PACKED_ON_MLX.contains(&fixture.name), "{}: {error}", fixture.name);
            mlxcel_session::mlx::MlxBackend::new()
                .with_expanded_weights(true)
                .load(&source, &options)
                .unwrap()
        }
        Err(error) => return Err(error.into()),
    };
    let mut session = model.open_session(&SessionOptions::default())?;
    fixture.oracle().check(&mut *session, &Tolerance::RANDOM_WEIGHTS).map(drop)
}

#[test]
fn every_quantized_format_is_exact_on_every_engine() {
    let folders = folders();
    assert!(folders.len() >= 6, "{} folders", folders.len());
    check_on_engines(&folders, &BTreeSet::from(COMPILED), check);
}
