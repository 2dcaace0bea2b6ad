//! Checkpoints of families, packed forms and encoders, compared with their oracles.
//!
//! `MLXCEL_VULKAN_FOLDERS` is a comma-separated list of folders below `fixtures/`, or `all`;
//! `MLXCEL_VULKAN_TABLE` is a file for the table of documentation.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use mlxcel_conformance::{Failure, Oracle, Outcome, Tolerance};
use mlxcel_core::{
    Backend, Control, ErrorKind, InferenceSession, InferenceSessionExt, Pooling, Row, RowResult,
    SessionOptions,
};
use mlxcel_iree::IreeBackend;

use crate::{engine, options, root};

/// The largest difference of an encoder's vectors, relative to the largest magnitude.
const LARGEST_ERROR: f32 = 1e-3;
/// One of each kind of state, one with experts, and one of each packed form whose programs differ.
const SELECTED: [&str; 8] = [
    "architectures/llama",
    "architectures/mistral",
    "architectures/mamba2",
    "architectures/mixtral",
    "architectures/qwen3_next",
    "formats/awq",
    "formats/gguf-llama-q4_k_m",
    "formats/gguf-llama-q8_0",
];

/// The folders that the environment names, or `default`.
fn folders(default: &[&str]) -> Vec<String> {
    let named = env::var("MLXCEL_VULKAN_FOLDERS").unwrap_or_default();
    if named != "all" {
        let named: Vec<_> = named.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        return if named.is_empty() { default.iter().map(|&name| name.to_owned()).collect() } else { named };
    }
    let of = |kind: &str| {
        let entries = fs::read_dir(root().join(kind)).unwrap();
        let names = entries.map(|entry| format!("{kind}/{}", entry.unwrap().file_name().to_str().unwrap()));
        names.filter(|name| root().join(name).join("oracle.json").exists()).collect::<Vec<_>>()
    };
    let mut names: Vec<_> = ["architectures", "encoders", "formats"].into_iter().flat_map(of).collect();
    names.sort();
    names
}

/// Runs the cases of a folder's oracle; the largest error of logits, or of an encoder's vectors.
pub(super) fn run(folder: &Path, engine: &IreeBackend) -> Outcome<f32> {
    let path = folder.join("oracle.json");
    let text: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let encoder = text.get("hidden").map(|cases| cases.as_array().unwrap());
    // Encoders have fewer positions.
    let capacity = if encoder.is_some() { 96 } else { 160 };
    let model = engine.load(&folder.into(), &options().with_capacity(capacity))?;
    assert!(model.info().device.starts_with("vulkan:GPU-"), "{}", model.info().device);
    let mut session = model.open_session(&SessionOptions::default())?;
    match encoder {
        Some(cases) => {
            cases.iter().try_fold(0f32, |most, case| Ok(most.max(run_encoder(&mut *session, case)?)))
        }
        None => Oracle::read(path)?.within(capacity).check(&mut *session, &Tolerance::RANDOM_WEIGHTS),
    }
}

fn run_encoder(session: &mut dyn InferenceSession, case: &serde_json::Value) -> Outcome<f32> {
    let numbers = |name: &str| -> Vec<f32> {
        case[name].as_array().unwrap().iter().map(|n| n.as_f64().unwrap() as f32).collect()
    };
    let text: Vec<_> = numbers("tokens").into_iter().map(|token| token as u32).collect();
    let types: Vec<_> = numbers("types").into_iter().map(|kind| kind as u8).collect();
    let poolings = [(Pooling::First, "first"), (Pooling::Mean, "mean"), (Pooling::Last, "last")];
    poolings.into_iter().try_fold(0f32, |most, (pooling, name)| {
        let sequence = session.open()?;
        let row = Row::hidden(sequence, &text, pooling).with_token_types(&types);
        let RowResult::Hidden(found) = session.run_row(row, &Control::default())? else {
            panic!("not a hidden state")
        };
        session.close(sequence)?;
        let expected = numbers(name);
        let largest = expected.iter().fold(0f32, |most, number| most.max(number.abs()));
        let error = found.iter().zip(&expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest;
        let exact =
            found.len() == expected.len() && error <= LARGEST_ERROR && !found.iter().any(|x| x.is_nan());
        if exact { Ok(most.max(error)) } else { Err(Failure::new(format!("{name}: differs by {error:.1e}"))) }
    })
}

#[test]
fn families_and_packed_forms_are_exact_or_refused_by_name() {
    let named = folders(&SELECTED);
    // The table is for the chunks that GPUs have by default.
    let named_by_environment = env::var_os("MLXCEL_VULKAN_FOLDERS").is_some();
    let engine = engine().with_prefill_chunk(if named_by_environment { 512 } else { 16 });
    let mut table = String::from("| checkpoint | on Vulkan |\n|---|---|\n");
    let mut wrong = Vec::new();
    for name in &named {
        let outcome = run(&root().join(name), &engine);
        let text = match &outcome {
            Ok(error) => format!("exact ({error:.0e})"),
            Err(error) => {
                // A program that cannot be compiled is refused before anything runs; everything else is a
                // defect.
                let kind = error.error().map(|error| error.kind());
                if !matches!(kind, Some(ErrorKind::Unsupported | ErrorKind::Compile))
                    || SELECTED.contains(&&**name)
                {
                    wrong.push(format!("{name}: {error}"));
                }
                format!("refused: {}", error.to_string().replace('|', "\\|").replace('\n', " "))
            }
        };
        eprintln!("{name}: {text}");
        let _ = writeln!(table, "| `{name}` | {text} |");
    }
    if let Some(path) = env::var_os("MLXCEL_VULKAN_TABLE") {
        fs::write(path, table).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
