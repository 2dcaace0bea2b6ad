//! Checkpoints as they are published in packed forms, against what transformers computes from the unpacked weights.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by them")]

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::{
    Backend, Control, GenerateExt, GenerateOptions, InferenceSession, LoadOptions, Precision, Row, RowResult,
    SessionOptions,
};
use mlxcel_portable::PortableBackend;
use serde_json::Value;

/// Below this margin of the oracle's best logit over its second, a float32 engine may honestly choose the other token.
const HONEST_MARGIN: f64 = 1e-3;
/// The largest difference of logits, relative to the largest magnitude.
const LOGITS: f64 = 1e-3;
/// How many tokens of each case are generated.
const TOKENS: usize = 3;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn tokens(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|number| number as u32).collect()
}

/// The folders of `fixtures/formats` whose names begin so.
fn folders(prefix: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats");
    let mut folders: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    folders.sort();
    folders
}

fn check(session: &mut dyn InferenceSession, case: &Value) -> Result<(), String> {
    let prompt = tokens(&case["prompt"]);
    let sequence = session.open().unwrap();
    let result = session.prefill(Row::logits(sequence, &prompt), &Control::default()).unwrap();
    session.close(sequence).unwrap();
    let RowResult::Logits(logits) = result else { panic!("no logits") };
    let wanted = numbers(&case["prefill_logits"]);
    let largest = wanted.iter().fold(0f64, |largest, logit| largest.max(logit.abs()));
    let off = logits.iter().zip(&wanted).fold(0f64, |worst, (a, b)| worst.max((f64::from(*a) - b).abs()));
    if logits.len() != wanted.len() || off > LOGITS * largest {
        return Err(format!("{} logits differ by {}", logits.len(), off / largest));
    }
    let (mut greedy, margins) = (tokens(&case["greedy"]), numbers(&case["margins"]));
    // This engine unpacks all weights for each token.
    greedy.truncate(TOKENS);
    let generation = session.generate_greedy(&prompt, &GenerateOptions::new(greedy.len())).unwrap();
    for ((token, wanted), margin) in generation.tokens.iter().zip(&greedy).zip(margins) {
        if token != wanted {
            return if margin < HONEST_MARGIN { Ok(()) } else { Err(format!("{token} is not {wanted}")) };
        }
    }
    if generation.tokens.len() == greedy.len() { Ok(()) } else { Err("too few tokens".to_owned()) }
}

fn check_folder(folder: &Path) {
    let oracle: Value = serde_json::from_slice(&fs::read(folder.join("oracle.json")).unwrap()).unwrap();
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model = PortableBackend::new().load(&folder.into(), &options).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for (number, case) in oracle["cases"].as_array().unwrap().iter().enumerate() {
        if let Err(error) = check(&mut *session, case) {
            panic!("{}, case {number}: {error}", folder.display());
        }
    }
}

#[test]
fn gguf_files_are_what_they_were_made_from() {
    let folders = folders("gguf-");
    assert_eq!(folders.len(), 15);
    std::thread::scope(|scope| {
        for half in folders.chunks(folders.len() / 2) {
            scope.spawn(|| half.iter().for_each(|folder| check_folder(folder)));
        }
    });
}
