//! The program `quantize`, as a user runs it, and what it writes, run by an engine.

use std::path::PathBuf;

use crate::program::{Run, fixture, mlxcel};
use crate::support::Fixture;

/// `quantize` of the model that is the first of `arguments` into the folder that is the second.
fn quantize(arguments: &[&str]) -> Run {
    let mut program = mlxcel(&["quantize", "--model", arguments[0], "--out", arguments[1]]);
    Run::of(program.args(&arguments[2..]))
}

fn storyteller() -> PathBuf {
    Fixture::storyteller().path
}

#[test]
fn a_quantized_checkpoint_is_a_quarter_of_the_size() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (storyteller(), folder.path().join("small"));
    let arguments = [model.to_str().unwrap(), out.to_str().unwrap(), "--bits", "4", "--group-size", "64"];
    let written = quantize(&[&arguments[..], &["--json"]].concat()).json();
    let bytes = |name: &str| written[name].as_f64().unwrap();
    assert!(bytes("bytes") < 0.3 * bytes("bytes_before"), "{written}");
    assert_eq!(written["modules"], 4 * 7 + 1);

    // A second time there is something in its place.
    quantize(&arguments).refused(2, &[&format!("--out {}", out.display())]);
}

/// Whatever is the first thing that does not get a file descriptor.
#[test]
#[cfg(unix)]
fn nothing_stays_where_descriptors_run_out() {
    let mut failures = 0;
    for limit in 4..24 {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]);
        shell.arg(mlxcel(&[]).get_program()).args(["quantize", "--threads", "2", "--model"]);
        shell.arg(storyteller()).arg("--out").arg(folder.path().join("small"));
        if !shell.output().unwrap().status.success() {
            failures += 1;
            let left: Vec<_> =
                std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "with {limit} descriptors {left:?} stay");
        }
    }
    assert!((1..20).contains(&failures), "{failures} runs failed");
}

/// The work is not lost by a name that is not UTF-8.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_whose_name_is_no_text_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"small-\xff");
    let run = |arguments: &[&str], name: &str, out: &std::path::Path| {
        let mut program = mlxcel(arguments);
        let written = Run::of(program.arg("--model").arg(storyteller()).arg("--out").arg(out)).json();
        assert_eq!(written[name], out.display().to_string());
        assert!(out.join("config.json").is_file());
    };
    run(&["quantize", "--json"], "out", &folder.path().join(name));
    #[cfg(feature = "iree")]
    {
        let bundle = ["bundle", "--target", "stablehlo", "--context", "64", "--json"];
        std::fs::create_dir(folder.path().join("bundles")).unwrap();
        run(&bundle, "bundle", &folder.path().join("bundles").join(name));
    }
}

#[test]
fn requantizing_a_quantized_checkpoint_works_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("storyteller-4bit");
    let (out, told) = (folder.path().join("small"), folder.path().join("text"));
    std::fs::write(&told, "Once upon a time there was a fox named Pip. Pip loved the forest.").unwrap();
    let paths = [&model, &out, &told].map(|path| path.to_str().unwrap());
    let mixed = ["--recipe", "mixed_4_6", "--group-size", "32", "--tensor", "*.o_proj=8/64"];
    let measured = ["--perplexity", paths[2], "--context", "12", "--perplexity-tokens", "20"];
    let engine = ["--backend", "portable", "--json"];
    let written = quantize(&[&paths[..2], &mixed, &measured, &engine].concat()).json();
    let tensors = written["tensors"].as_array().unwrap().iter();
    let packings: Vec<_> = tensors.map(|tensor| tensor["packing"].as_str().unwrap()).collect();
    for packing in ["u4/32 bf16 + bf16", "u6/32 bf16 + bf16", "u8/64 bf16 + bf16"] {
        assert!(packings.contains(&packing), "{packings:?}");
    }
    let perplexity = &written["perplexity"];
    let number = |name: &str| perplexity[name].as_f64().unwrap();
    assert_eq!((number("tokens"), number("windows"), number("context")), (20.0, 3.0, 12.0));
    assert!((number("before") / number("after") - 1.0).abs() < 0.2, "{perplexity}");

    std::fs::remove_dir_all(&out).unwrap();
    let lines = quantize(&[paths[0], paths[1], "--mode", "mxfp4", "--verbose"]).out;
    assert_eq!(lines.lines().count(), 1 + 4 * 7 + 1 + 2, "{lines}");
    assert!(lines.contains("e2m1/32 e8m0"), "{lines}");

    for (arguments, words) in [
        (&["--recipe", "mixed"][..], ["--recipe", "the recipe 'mixed' does not exist"]),
        (&["--tensor", "lm_head"], ["--tensor", "PATTERN=BITS"]),
        (&["--bits", "7"], ["--bits", "2, 3, 4, 5, 6, 8"]),
        (&["--group-size", "7"], ["--group-size", "32, 64, 128"]),
        (&["--threads", "0"], ["--threads", "1 to 256"]),
        (&["--mode", "int4"], ["--mode", "mxfp4"]),
        (&["--perplexity", paths[2], "--context", "1"], ["--context", "at least 2"]),
    ] {
        quantize(&[&[paths[0], "no"], arguments].concat()).refused(2, &words);
    }
}

/// Its tensors are those that mlx-lm writes, so the engine says with it what mlx-lm says.
#[test]
#[cfg(feature = "mlx")]
fn engines_run_the_quantized_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (storyteller(), folder.path().join("small"));
    let run = quantize(&[model.to_str().unwrap(), out.to_str().unwrap()]);
    assert_eq!((run.status, run.err.as_str()), (0, ""));
    let told = |model: PathBuf| {
        let mut generate =
            mlxcel(&["generate", "--backend", "mlx", "--precision", "exact", "-n", "40", "--json"]);
        generate.args(["--prompt", "Tell me a story about a fox named Pip.", "--model"]).arg(model);
        Run::of(&mut generate).json()["text"].as_str().unwrap().to_owned()
    };
    let story = told(out);
    assert!(story.contains("Pip"), "{story}");
    assert_eq!(story, told(fixture("storyteller-4bit")));
}

#[cfg(target_os = "linux")]
#[test]
fn a_thread_limit_slows_quantization_without_changing_results() {
    let folder = tempfile::tempdir().unwrap();
    // Too little room for the stacks of this many threads.
    let script = "ulimit -v 300000; exec \"$0\" quantize --model \"$1\" --out \"$2\" --threads 256";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_mlxcel")]);
    let run = Run::of(shell.args([storyteller(), folder.path().join("out")]));
    assert_eq!(run.status, 0, "{run:?}");
    quantize(&["in", "out", "--threads", "100000"]).refused(2, &[]);
}

#[test]
fn matrices_that_stay_unpacked_are_told_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small");
    // Only some rows of this model are multiples of 128.
    let arguments = [storyteller().to_str().unwrap().to_owned(), out.to_str().unwrap().to_owned()];
    let arguments = [&arguments[0], &arguments[1], "--group-size", "128"];
    let run = quantize(&arguments);
    assert!(run.status == 0 && run.out.contains("25 matrices are not packed"), "{run:?}");
}
