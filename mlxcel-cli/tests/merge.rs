//! `mlxcel merge`, as a user runs it, and what it writes, run by an engine.
#![cfg(feature = "portable")]

use crate::program::{Run, fixture, mlxcel};

fn run(arguments: &[&str]) -> Run {
    Run::of(&mut mlxcel(arguments))
}

#[test]
fn a_merged_checkpoint_opens_without_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    let [model, adapter] =
        ["architectures/llama", "adapters/llama-all"].map(|name| fixture(name).display().to_string());
    let out = out.to_str().unwrap();
    let arguments = ["merge", "--model", &model, "--adapter", &adapter, "--out", out, "--json"];
    let written = run(&arguments).json();
    assert_eq!((written["tensors"].as_array().unwrap().len() % 7, &written["files"]), (0, &1.into()));
    let generate = |model: &str| {
        let common =
            ["generate", "--backend", "portable", "--precision", "exact", "--tokens", "3,4,5,6,7", "-n", "4"];
        let own = ["--ignore-eos", "--json", "--model", model];
        run(&[&common[..], &own].concat()).json()["tokens"].clone()
    };
    // That it is the model with the adapter is a test of engines, in float32.
    assert_ne!(generate(out), generate(&model));

    // Packed sums, and those as floats again.
    let [packed, floats] = ["packed", "floats"].map(|name| folder.path().join(name).display().to_string());
    let packing = ["--bits", "8", "--group-size", "32"];
    let merge = |model: &str, out: &str, more: &[&str]| {
        let own = ["merge", "--model", model, "--adapter", &adapter, "--out", out];
        run(&[&own[..], more].concat())
    };
    merge(&model, &packed, &packing).printed();
    merge(&packed, &floats, &[]).refused(2, &["packed weight"]);
    merge(&packed, &floats, &["--dequantize"]).printed();
    merge(&packed, &floats, &["--dequantize", "--bits", "4"]).refused(2, &[]);
    generate(&floats);

    // A second time there is something in its place.
    run(&arguments).refused(2, &[]);
}
