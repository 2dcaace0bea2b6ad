//! Every family against transformers' float32 results.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;

use mlxcel_core::{
    Backend, Control, GenerateExt, GenerateOptions, InferenceSession, LoadOptions, Precision, Row, RowResult,
    SessionOptions,
};
use mlxcel_portable::PortableBackend;
use serde_json::Value;

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn check(folder: &Path) -> Result<(), String> {
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model =
        PortableBackend::new().load(&folder.to_path_buf().into(), &options).map_err(|e| format!("{e}"))?;
    let mut session = model.open_session(&SessionOptions::default()).map_err(|e| format!("{e}"))?;
    let oracle: Value = serde_json::from_slice(&std::fs::read(folder.join("oracle.json")).unwrap()).unwrap();
    let mut worst = 0f32;
    for (index, case) in oracle["cases"].as_array().unwrap().iter().enumerate() {
        let prompt = ids(&case["prompt"]);
        let expected = floats(&case["prefill_logits"]);
        let sequence = session.open().map_err(|e| format!("{e}"))?;
        let result = session.prefill(Row::logits(sequence, &prompt), &Control::default());
        let RowResult::Logits(logits) = result.map_err(|e| format!("{e}"))? else { panic!() };
        session.close(sequence).unwrap();
        let scale = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        let error = logits.iter().zip(&expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / scale;
        worst = worst.max(error);
        if error.is_nan() || error > 1e-3 {
            return Err(format!("case {index} of {} tokens: logits differ by {error}", prompt.len()));
        }
        let greedy = ids(&case["greedy"]);
        let (margins, logprobs) = (floats(&case["margins"]), floats(&case["logprobs"]));
        let generation = session
            .generate_greedy(&prompt, &GenerateOptions::new(greedy.len()))
            .map_err(|e| format!("{e}"))?;
        for (i, (&token, &logprob)) in generation.tokens.iter().zip(&generation.logprobs).enumerate() {
            if token != greedy[i] {
                if margins[i] < 1e-3 {
                    break;
                }
                return Err(format!("case {index}: token {i} is {token}, not {}", greedy[i]));
            }
            if (logprob - logprobs[i]).abs() > 3e-3 {
                return Err(format!("case {index}: logprob {i} is {logprob}, not {}", logprobs[i]));
            }
        }
    }
    println!("{}: {worst:e}", folder.display());
    Ok(())
}

#[test]
fn every_architecture_is_exact() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures");
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut names: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let mut failed = Vec::new();
    for folder in names {
        if !folder.display().to_string().contains(&only) {
            continue;
        }
        if let Err(error) = check(&folder) {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            println!("FAILED {name}: {error}");
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
