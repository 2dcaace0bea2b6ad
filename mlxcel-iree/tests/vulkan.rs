//! Models on a Vulkan device, against transformers' float32 results. Without a GPU, Mesa's software driver
//! runs them: `cargo xtask test --only vulkan` installs or names it.
//!
//! `MLXCEL_VULKAN_FOLDERS` is a comma-separated list of folders below `fixtures/`, or `all`;
//! `MLXCEL_VULKAN_TABLE` is a file for the table of documentation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, missing_docs)]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_conformance::{Failure, Oracle, Outcome, Tolerance};
use mlxcel_core::{
    Backend, Control, ErrorKind, GenerateExt, GenerateOptions, InferenceSession, InferenceSessionExt,
    LoadOptions, Pooling, Precision, Row, RowResult, SessionOptions,
};
use mlxcel_iree::devices::{self, DeviceKind};
use mlxcel_iree::{IreeBackend, bundle};

/// The largest difference of an encoder's vectors, relative to the largest magnitude.
const LARGEST_ERROR: f32 = 1e-3;
const DEVICE: &str = "vulkan";

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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn engine() -> IreeBackend {
    IreeBackend::new()
        .with_cache_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("vulkan-cache"))
        .with_prefill_chunk(16)
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact).with_device(DEVICE).with_capacity(160)
}

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
fn run(folder: &Path, engine: &IreeBackend) -> Outcome<f32> {
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
    let mut table = String::from("| checkpoint | on Vulkan |\n|---|---|\n");
    let mut wrong = Vec::new();
    for name in &named {
        let outcome = run(&root().join(name), &engine());
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

#[test]
fn the_device_is_listed_and_found_by_path_and_number() {
    let listed = devices::list();
    let found = listed.iter().find(|info| info.device.starts_with("vulkan:") && info.is_default);
    let found = found.unwrap_or_else(|| panic!("no Vulkan device: {listed:?}"));
    eprintln!("{found}");
    assert!(found.unusable.is_none() && found.kind != DeviceKind::Cpu && found.memory_bytes > Some(0));
    assert!(found.target.as_ref().unwrap().starts_with("vulkan-spirv:spirv,"));
    let folder = root().join("architectures/llama");
    let load = |device: &str| engine().load(&folder.as_path().into(), &options().with_device(device));
    assert!(load(&found.device).unwrap().info().device.starts_with(&found.device));
    let error = load("vulkan:GPU-none").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.context("known").unwrap().contains(&found.device));
}

#[test]
fn programs_for_another_subgroup_size_are_refused_before_they_are_compiled() {
    let folder = root().join("architectures/llama");
    let properties =
        devices::list().into_iter().find(|info| info.device.starts_with("vulkan:") && info.is_default);
    let sizes = properties.unwrap().subgroup_sizes.unwrap();
    let others = [("vulkan-spirv:valhall", 16), ("vulkan-spirv:ampere", 32), ("vulkan-spirv:cdna3", 64)];
    for (target, _) in others.into_iter().filter(|(_, size)| sizes != (*size, *size)) {
        let engine = engine().with_compiler("/nowhere").with_compile_target(target.parse().unwrap());
        let error = engine.load(&folder.as_path().into(), &options()).map(drop).unwrap_err();
        assert_eq!(
            (error.kind(), error.context("target")),
            (ErrorKind::Unsupported, Some(target)),
            "{error}"
        );
        assert!(error.context("missing").unwrap().contains("subgroups of"), "{error}");
    }
}

#[test]
fn programs_without_subgroup_operations_are_exact() {
    // What a device gets whose driver chooses between subgroup sizes.
    let target = "vulkan-spirv:spirv,+float16,+int16,+int8,+storage16,+storage8";
    run(&root().join("architectures/llama"), &engine().with_compile_target(target.parse().unwrap())).unwrap();
}

#[test]
fn a_bundle_for_the_device_runs() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = root().join("architectures/llama");
    let folder = place.path().join("bundle");
    let mut wanted = bundle::BundleOptions::default().with_targets(["vulkan-spirv:host"]);
    wanted.load = LoadOptions::default().with_precision(Precision::Exact).with_capacity(150);
    bundle::write(&engine(), &checkpoint.as_path().into(), &folder, &wanted).unwrap();
    let engine = IreeBackend::new().with_trusted_bundle(&folder);
    let model = engine.load(&folder.as_path().into(), &options().with_capacity(150)).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let text = session.generate_greedy(&[12, 176, 62, 160, 111], &GenerateOptions::new(6)).unwrap();
    assert_eq!(text.tokens, [223, 54, 213, 72, 1, 99]);
}
