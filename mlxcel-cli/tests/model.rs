//! The arguments that name a model or an adapter, in all subcommands that have them.
#![cfg(feature = "portable")]

use crate::program::{Run, mlxcel};

/// Fails unless `mlxcel` ends with status 2 and one line that has `words`.
#[track_caller]
fn refused(arguments: &[&str], words: &[&str]) {
    Run::of(mlxcel(arguments).env("MLXCEL_BACKEND", "portable")).refused(2, words);
}

fn fixture(name: &str) -> String {
    crate::program::fixture(name).to_str().unwrap().to_owned()
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
            let words = [&format!("--model {missing}: "), "org/name"];
            refused(&[command, &["--model", missing]].concat(), &words);
        }
    }
}

#[test]
fn adapters_are_told_from_models() {
    let adapter = fixture("adapters/llama-all");
    refused(&["generate", "--prompt", "a", "--model", &adapter], &["adapter: ", "--adapter"]);
    for command in [&["generate", "--prompt", "a"][..], &["chat"], &["serve", "--port", "0"]] {
        let named = if command[0] == "serve" { "a=/nope" } else { "/nope" };
        refused(&[command, &["--adapter", named]].concat(), &["--adapter /nope: "]);
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
        refused(&[command, &["--model", &encoder]].concat(), &["encoder", "mlxcel embed"]);
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
        refused(&[command, &["--out", out]].concat(), &[&format!("--out {out}")]);
    }
    let commands = [
        "models",
        #[cfg(feature = "iree")]
        "cache",
    ];
    for command in commands {
        refused(&[command, "--dir", "/nope"], &["--dir /nope"]);
    }
}

#[test]
fn strides_and_shards_out_of_range_are_refused_by_option() {
    let text = "long ".repeat(100);
    let score = ["score", "--text", &text, "--context", "32", "--stride"];
    for stride in ["0", "-1", "32"] {
        refused(&[&score[..], &[stride]].concat(), &["--stride"]);
    }
    let quantize = ["quantize", "--model", "a", "--out", "b", "--shard-size", "0"];
    refused(&quantize, &["--shard-size"]);
}

#[cfg(feature = "iree")]
#[test]
fn a_cache_that_cannot_be_written_is_reported_with_the_way_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for folder in [file.path(), "/proc/none".as_ref()] {
        let mut program = mlxcel(&["generate", "--backend", "iree", "-n", "1"]);
        Run::of(program.env("MLXCEL_CACHE_DIR", folder)).refused(1, &["MLXCEL_CACHE_DIR"]);
    }
}
