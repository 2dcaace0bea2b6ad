//! The program `quantize`, as a user runs it, and what it writes, run by an engine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// `quantize` of the model that is the first of `arguments` into the folder that is the second.
fn quantize(arguments: &[&str]) -> Output {
    let (model, out) = (arguments[0], arguments[1]);
    let mut program = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    program.arg("quantize");
    program.args(["--model", model, "--out", out]).args(&arguments[2..]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn storyteller() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/storyteller")
}

#[test]
fn a_quantized_checkpoint_is_a_quarter_of_the_size() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (storyteller(), folder.path().join("small"));
    let arguments = [model.to_str().unwrap(), out.to_str().unwrap(), "--bits", "4", "--group-size", "64"];
    let output = quantize(&[&arguments[..], &["--json"]].concat());
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let written: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = |name: &str| written[name].as_f64().unwrap();
    assert!(bytes("bytes") < 0.3 * bytes("bytes_before"), "{written}");
    assert_eq!(written["modules"], 4 * 7 + 1);

    // A second time there is something in its place.
    let output = quantize(&arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(&format!("--out {}", out.display())));
}

#[test]
fn requantizing_a_quantized_checkpoint_works_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/storyteller-4bit");
    let (out, told) = (folder.path().join("small"), folder.path().join("text"));
    std::fs::write(&told, "Once upon a time there was a fox named Pip. Pip loved the forest.").unwrap();
    let paths = [&model, &out, &told].map(|path| path.to_str().unwrap());
    let output = quantize(&[
        paths[0],
        paths[1],
        "--recipe",
        "mixed_4_6",
        "--group-size",
        "32",
        "--tensor",
        "*.o_proj=8/64",
        "--json",
        "--perplexity",
        paths[2],
        "--backend",
        "portable",
        "--context",
        "12",
        "--perplexity-tokens",
        "20",
    ]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let written: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packings: Vec<_> = written["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["packing"].as_str().unwrap())
        .collect();
    for packing in ["u4/32 bf16 + bf16", "u6/32 bf16 + bf16", "u8/64 bf16 + bf16"] {
        assert!(packings.contains(&packing), "{packings:?}");
    }
    let perplexity = &written["perplexity"];
    let number = |name: &str| perplexity[name].as_f64().unwrap();
    assert_eq!((number("tokens"), number("windows"), number("context")), (20.0, 3.0, 12.0));
    assert!((number("before") / number("after") - 1.0).abs() < 0.2, "{perplexity}");

    std::fs::remove_dir_all(&out).unwrap();
    let output = quantize(&[paths[0], paths[1], "--mode", "mxfp4", "--verbose"]);
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), 1 + 4 * 7 + 1 + 2, "{lines}");
    assert!(lines.contains("e2m1/32 e8m0"), "{lines}");

    for (arguments, words) in [
        (["--recipe", "mixed"], "the recipe 'mixed' does not exist"),
        (["--tensor", "lm_head"], "PATTERN=BITS"),
        (["--bits", "7"], "2, 3, 4, 5, 6, 8"),
        (["--mode", "int4"], "mxfp4"),
    ] {
        let output = quantize(&[&[paths[0], "no"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}

/// Its tensors are those that mlx-lm writes, so the engine says with it what mlx-lm says.
#[test]
#[cfg(feature = "mlx")]
fn engines_run_the_quantized_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (storyteller(), folder.path().join("small"));
    let output = quantize(&[model.to_str().unwrap(), out.to_str().unwrap()]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let told = |model: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_mlxcel"))
            .arg("generate")
            .args(["--backend", "mlx", "--precision", "exact", "-n", "40", "--json", "--model"])
            .arg(model)
            .args(["--prompt", "Tell me a story about a fox named Pip."])
            .output()
            .unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["text"].as_str().unwrap().to_owned()
    };
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/storyteller-4bit");
    let story = told(&out);
    assert!(story.contains("Pip"), "{story}");
    assert_eq!(story, told(&fixture));
}

#[cfg(target_os = "linux")]
#[test]
fn a_thread_limit_slows_quantization_without_changing_results() {
    let folder = tempfile::tempdir().unwrap();
    // Too little room for the stacks of this many threads.
    let script = "ulimit -v 300000; exec \"$0\" quantize --model \"$1\" --out \"$2\" --threads 256";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_mlxcel")])
        .args([storyteller(), folder.path().join("out")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = quantize(&["in", "out", "--threads", "100000"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn matrices_that_stay_unpacked_are_told_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small");
    // Only some rows of this model are multiples of 128.
    let arguments = [storyteller().to_str().unwrap().to_owned(), out.to_str().unwrap().to_owned()];
    let arguments = [&arguments[0], &arguments[1], "--group-size", "128"];
    let output = quantize(&arguments);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("25 matrices are not packed"), "{said}");
}
