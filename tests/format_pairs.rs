//! Packed checkpoints on every engine, against their values in float32 on the portable one. The pairs are
//! written by `fixtures/formats/make_pairs.py`.
#![cfg(feature = "portable")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::engines;
use mlxcel_core::{
    Backend, Control, ErrorKind, InferenceSessionExt, LoadOptions, Model, Precision, Result, Row,
    SessionOptions,
};

/// Below this margin of the best logit over the second, a float32 engine may honestly choose the other token.
const HONEST_MARGIN: f32 = 1e-3;
/// The largest difference of logits, relative to the largest magnitude.
const LOGITS: f32 = 1e-3;
/// Tokens that are decoded, one by one.
const DECODED: usize = 3;

/// The logits after a prompt of so many tokens, and after each token that follows; `fed` tells these, or the
/// most likely ones are taken.
fn logits(model: &dyn Model, prompt: usize, fed: Option<&[Vec<f32>]>) -> Result<Vec<Vec<f32>>> {
    let mut session = model.open_session(&SessionOptions::default())?;
    let sequence = session.open()?;
    let mut next: Vec<u32> = (0..prompt).map(|index| (index * 37 + 11) as u32 % 250).collect();
    let mut all: Vec<Vec<f32>> = Vec::new();
    for step in 0..=DECODED {
        let result = session.run_row(Row::logits(sequence, &next), &Control::default())?;
        let logits = result.into_logits().unwrap();
        all.push(logits);
        next = vec![most_likely(&fed.unwrap_or(&all)[step])];
    }
    Ok(all)
}

fn most_likely(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap() as u32
}

fn margin(logits: &[f32]) -> f32 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted[0] - sorted[1]
}

/// What differs between the logits of a model and those that are expected.
fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Option<String> {
    found.iter().zip(expected).enumerate().find_map(|(step, (found, expected))| {
        let largest = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let pairs = found.iter().zip(expected);
        let error = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest;
        let same = most_likely(found) == most_likely(expected) || margin(expected) < HONEST_MARGIN;
        let fits = found.len() == expected.len() && error <= LOGITS && same;
        (!fits).then(|| format!("step {step}: logits differ by {error}"))
    })
}

fn load(engine: &dyn Backend, folder: &Path) -> Result<Arc<dyn Model>> {
    let options = LoadOptions::default().with_precision(Precision::Exact).with_capacity(64).with_sequences(1);
    engine.load(&folder.to_owned().into(), &options)
}

/// The engines, and those whose way out of an unsupported packing is another option.
fn all_engines() -> Vec<(&'static str, Box<dyn Backend>)> {
    #[allow(unused_mut, reason = "without the engine there is nothing to add")]
    let mut all: Vec<(&str, Box<dyn Backend>)> =
        engines().into_iter().map(|engine| ("as it is", engine)).collect();
    #[cfg(feature = "mlx")]
    all.push(("expanded", Box::new(mlxcel_session::mlx::MlxBackend::new().with_expanded_weights(true))));
    all
}

/// The pairs that the environment names, as far as their names contain what it asks for.
fn pairs() -> Vec<(String, PathBuf)> {
    let folder = std::env::var_os("MLXCEL_TEST_PAIRS").expect("MLXCEL_TEST_PAIRS names a folder of pairs");
    let wanted = std::env::var("MLXCEL_TEST_PAIRS_NAMED").unwrap_or_default();
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = entries.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path));
    let mut pairs: Vec<_> = named.filter(|(name, _)| name.contains(&wanted)).collect();
    pairs.sort();
    pairs
}

#[test]
#[ignore = "needs the pairs that fixtures/formats/make_pairs.py writes"]
fn packed_checkpoints_equal_their_dense_pairs() {
    let wanted = std::env::var("MLXCEL_TEST_ENGINES").unwrap_or_default();
    let mut failures = Vec::new();
    for (name, path) in pairs() {
        let dense = mlxcel_session::portable::PortableBackend::new();
        let dense = load(&dense, &path.join("dense")).unwrap();
        let expected = [5, 37].map(|prompt| logits(&*dense, prompt, None).unwrap());
        for (how, engine) in all_engines() {
            if !wanted.is_empty() && !wanted.split(',').any(|wanted| wanted == engine.name()) {
                continue;
            }
            let title = format!("{name} {} {how}", engine.name());
            let model = match load(&*engine, &path.join("packed")) {
                Ok(model) => model,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    println!("{title}: {error}");
                    continue;
                }
                Err(error) => {
                    failures.push(format!("{title}: {error}"));
                    continue;
                }
            };
            let all = [5, 37].into_iter().zip(&expected);
            let fault = all.filter_map(|(prompt, expected)| {
                let found = match logits(&*model, prompt, Some(expected)) {
                    Ok(found) => found,
                    Err(error) => return Some(error.to_string()),
                };
                difference(&found, expected).map(|fault| format!("prompt of {prompt}: {fault}"))
            });
            let faults: Vec<_> = fault.collect();
            println!("{title}: {}", if faults.is_empty() { "equal" } else { "DIFFERS" });
            failures.extend(faults.into_iter().map(|fault| format!("{title}: {fault}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
