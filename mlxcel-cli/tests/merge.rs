//! `mlxcel merge`, as a user runs it, and what it writes, run by an engine.
#![cfg(feature = "portable")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mlxcel")).args(arguments).output().unwrap()
}

#[test]
fn a_merged_checkpoint_opens_without_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    let [model, adapter] =
        ["architectures/llama", "adapters/llama-all"].map(|name| fixtures().join(name).display().to_string());
    let out = out.to_str().unwrap();
    let arguments = ["merge", "--model", &model, "--adapter", &adapter, "--out", out, "--json"];
    let output = run(&arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.as_str()), (Some(0), ""));
    let written: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((written["tensors"].as_array().unwrap().len() % 7, &written["files"]), (0, &1.into()));
    let generate = |model: &str| {
        let common =
            ["generate", "--backend", "portable", "--precision", "exact", "--tokens", "3,4,5,6,7", "-n", "4"];
        let output = run(&[&common[..], &["--ignore-eos", "--json", "--model", model]].concat());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["tokens"].clone()
    };
    // That it is the model with the adapter is a test of engines, in float32.
    assert_ne!(generate(out), generate(&model));

    // Packed sums, and those as floats again.
    let [packed, floats] = ["packed", "floats"].map(|name| folder.path().join(name).display().to_string());
    let packing = ["--bits", "8", "--group-size", "32"];
    let merge = |model: &str, out: &str, more: &[&str]| {
        let own = ["merge", "--model", model, "--adapter", &adapter, "--out", out];
        let output = run(&[&own[..], more].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(merge(&model, &packed, &packing), (Some(0), String::new()));
    let (status, error) = merge(&packed, &floats, &[]);
    assert_eq!((status, error.contains("packed weight")), (Some(2), true), "{error}");
    assert_eq!(merge(&packed, &floats, &["--dequantize"]), (Some(0), String::new()));
    assert_eq!(merge(&packed, &floats, &["--dequantize", "--bits", "4"]).0, Some(2));
    generate(&floats);

    // A second time there is something in its place.
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(2));
}
