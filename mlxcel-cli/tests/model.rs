//! The arguments that name a model or an adapter, in all subcommands that have them.
#![cfg(feature = "portable")]

use std::path::Path;
use std::process::Command;

/// What `mlxcel` says that ends with status 2.
fn refusal(arguments: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    let output = program.args(arguments).env("MLXCEL_BACKEND", "portable").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
    said
}

fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("fixtures");
    fixtures.join(name).to_str().unwrap().to_owned()
}

#[test]
fn paths_that_do_not_exist_are_named_with_what_a_model_can_be() {
    for command in [
        &["generate", "--prompt", "a"][..],
        &["chat"],
        &["score", "--text", "a"],
        &["embed", "a"],
        &["inspect"],
        &["verify"],
        &["quantize", "--out", "/nope/out"],
        &["merge", "--out", "/nope/out", "--adapter", "a"],
    ] {
        for missing in ["nope", "/nope"] {
            let said = refusal(&[command, &["--model", missing]].concat());
            assert!(said.contains(&format!("--model {missing}: ")) && said.contains("org/name"), "{said}");
        }
    }
}

#[test]
fn adapters_are_told_from_models() {
    let adapter = fixture("adapters/llama-all");
    let said = refusal(&["generate", "--prompt", "a", "--model", &adapter]);
    assert!(said.contains("adapter: ") && said.contains("--adapter"), "{said}");
    for command in [&["generate", "--prompt", "a"][..], &["chat"], &["serve", "--port", "0"]] {
        let named = if command[0] == "serve" { "a=/nope" } else { "/nope" };
        let said = refusal(&[command, &["--adapter", named]].concat());
        assert!(said.contains("--adapter /nope: "), "{said}");
    }
}

#[test]
fn encoders_are_refused_by_what_generates_and_scores() {
    let encoder = fixture("encoders/bert");
    for command in [
        &["generate", "--tokens", "1"][..],
        &["chat"],
        &["score", "--text", "a"],
        &["verify", "--tokens", "1"],
    ] {
        let said = refusal(&[command, &["--model", &encoder]].concat());
        assert!(said.contains("encoder") && said.contains("mlxcel embed"), "{said}");
    }
}

#[test]
fn folders_that_exist_or_do_not_are_refused_by_option() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    let (model, adapter) = (fixture("architectures/llama"), fixture("adapters/llama-all"));
    for command in [
        &["quantize", "--model", &model][..],
        &["merge", "--model", &model, "--adapter", &adapter],
        #[cfg(feature = "iree")]
        &["bundle", "--model", &model],
    ] {
        let said = refusal(&[command, &["--out", out]].concat());
        assert!(said.contains(&format!("--out {out}")), "{said}");
    }
    let commands = [
        "models",
        #[cfg(feature = "iree")]
        "cache",
    ];
    for command in commands {
        assert!(refusal(&[command, "--dir", "/nope"]).contains("--dir /nope"));
    }
}

#[test]
fn strides_and_shards_out_of_range_are_refused_by_option() {
    let text = "long ".repeat(100);
    let score = ["score", "--text", &text, "--context", "32", "--stride"];
    for stride in ["0", "-1", "32"] {
        assert!(refusal(&[&score[..], &[stride]].concat()).contains("--stride"));
    }
    let quantize = ["quantize", "--model", "a", "--out", "b", "--shard-size", "0"];
    assert!(refusal(&quantize).contains("--shard-size"));
}

#[cfg(feature = "iree")]
#[test]
fn a_cache_that_cannot_be_written_is_reported_with_the_way_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for folder in [file.path(), Path::new("/proc/none")] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
        program.args(["generate", "--backend", "iree", "-n", "1"]).env("MLXCEL_CACHE_DIR", folder);
        let output = program.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("MLXCEL_CACHE_DIR"), "{said}");
    }
}
