//! Every packed form of published checkpoints on every engine, against what their unpacked weights give in
//! float32.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{Case, Fixture, engines, runs};
use mlxcel_core::{
    Backend, Control, GenerateExt, GenerateOptions, InferenceSession, InferenceSessionExt, Precision, Row,
    SessionOptions,
};

/// Below this margin of the oracle's best logit over its second, a float32 engine may honestly choose the
/// other token.
const HONEST_MARGIN: f32 = 1e-3;
/// The largest difference of prefill logits, relative to the largest magnitude.
const LOGITS: f32 = 1e-3;

/// What MLX's kernels take without expanding a weight.
#[cfg(feature = "mlx")]
const PACKED_ON_MLX: &[&str] = &[
    "awq",
    "compressed-w4",
    "gguf-gemma3-q8_0",
    "gguf-llama-q8_0",
    "gpt_oss-mxfp4",
    "gptq",
    "gptq-act-order",
];

/// What engines that compile run: zero points, scales of scales, experts, and blocks. Their kernels are
/// tested over each packing.
const COMPILED: [&str; 4] = ["awq", "fp8-block", "gguf-llama-q4_k_m", "gpt_oss-mxfp4"];

type Checked = Result<(), String>;

/// The folders of `fixtures/formats` that have an oracle.
fn folders() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats");
    let mut paths: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.join("oracle.json").exists());
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned().leak();
    paths.into_iter().map(|path| Fixture { name: name(&path), path }).collect()
}

fn check_case(session: &mut dyn InferenceSession, case: &Case) -> Checked {
    let sequence = session.open().unwrap();
    let result = session.run_row(Row::logits(sequence, &case.prompt), &Control::default()).unwrap();
    session.close(sequence).unwrap();
    let logits = result.into_logits().map_err(|error| error.to_string())?;
    let largest = case.prefill_logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    let pairs = logits.iter().zip(&case.prefill_logits);
    let error = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest;
    if logits.len() != case.prefill_logits.len() || error > LOGITS {
        return Err(format!("{} logits differ by {error}", logits.len()));
    }
    let generation = session.generate_greedy(&case.prompt, &GenerateOptions::new(case.greedy.len())).unwrap();
    for (step, (&token, &expected)) in generation.tokens.iter().zip(&case.greedy).enumerate() {
        if token != expected {
            let honest = case.margins[step] < HONEST_MARGIN;
            return if honest { Ok(()) } else { Err(format!("token {step} is {token}, not {expected}")) };
        }
    }
    if generation.tokens.len() == case.greedy.len() { Ok(()) } else { Err("too few tokens".to_owned()) }
}

fn check(engine: &dyn Backend, fixture: &Fixture) -> Checked {
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
        Err(error) => return Err(error.to_string()),
    };
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for (index, case) in fixture.cases().iter().enumerate() {
        check_case(&mut *session, case).map_err(|error| format!("case {index}: {error}"))?;
    }
    Ok(())
}

#[test]
fn every_quantized_format_is_exact_on_every_engine() {
    let folders = folders();
    assert!(folders.len() >= 6, "{} folders", folders.len());
    let mut failures = Vec::new();
    let compiled = BTreeSet::from(COMPILED);
    for fixture in &folders {
        for engine in engines() {
            if !runs(&*engine, fixture, &compiled) {
                continue;
            }
            if let Err(error) = check(&*engine, fixture) {
                failures.push(format!("{} {}: {error}", engine.name(), fixture.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
