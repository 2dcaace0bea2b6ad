//! The program `bundle`, and what it writes: run where there is nothing else.
#![cfg(feature = "iree")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::generate::{Case, assert_case, oracle};
use crate::program::{Run, copy_folder, files, fixture, mlxcel};
use crate::support::{Fixture, cache_dir, copy_program, write_script};
use mlxcel_conformance::{Expectations, Subject, run_all};
use mlxcel_core::{
    AdapterLimits, Backend, Control, ErrorKind, InferenceSessionExt, LoadOptions, Precision, Row,
    SequenceOptions, SessionOptions, Want,
};
use mlxcel_session::iree::IreeBackend;
use mlxcel_session::iree::bundle::BundleOptions;
use serde_json::Value;

/// The program with these arguments; what it compiles is kept beside the test binaries.
fn bundle(arguments: &[&str]) -> Command {
    let mut command = mlxcel(&["bundle"]);
    command.args(arguments).env("MLXCEL_CACHE_DIR", cache_dir());
    command
}

/// The oracle's cases of one question each.
fn questions() -> Vec<(String, Case)> {
    let cases = oracle(&Fixture::storyteller().path).into_iter().filter_map(|case| {
        let [message] = &case.messages.as_ref()?[..] else { return None };
        Some((message["content"].as_str()?.to_owned(), case))
    });
    cases.collect()
}

/// What the dynamic linker loads for a program: files that a container has to have.
#[cfg(target_os = "linux")]
fn linked_files(program: &Path) -> Vec<PathBuf> {
    let said = Run::of(Command::new("ldd").arg(program)).out;
    said.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Whether this process may make itself a root of its own.
#[cfg(target_os = "linux")]
fn may_isolate() -> bool {
    let tried = Command::new("unshare").args(["-rm", "chroot", "/", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// A copy of [`new_container`]'s for a test to run and to spoil.
fn container() -> tempfile::TempDir {
    static CONTAINER: OnceLock<PathBuf> = OnceLock::new();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(CONTAINER.get_or_init(new_container), copy.path());
    copy
}

/// A root folder that holds a copy of the program, what it links, and a bundle of the story teller whose
/// checkpoint and cache are gone.
fn new_container() -> PathBuf {
    let work = tempfile::tempdir().unwrap();
    let (checkpoint, cache) = (work.path().join("checkpoint"), work.path().join("cache"));
    copy_folder(&Fixture::storyteller().path, &checkpoint);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("container");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    let folder = root.join("bundle");
    let arguments = ["--precision", "exact", "--json", "--model", checkpoint.to_str().unwrap()];
    let written =
        Run::of(bundle(&arguments).arg("--out").arg(&folder).env("MLXCEL_CACHE_DIR", &cache)).json();
    assert_eq!(written["weights_included"], true);
    // Chunks of two sizes and a decoding row at one length where this machine's processor has kernels, else a
    // chunk and a row at two.
    let programs = written["targets"][0]["programs"].as_u64().unwrap();
    assert!((3..=4).contains(&programs), "{programs} programs");
    drop(work);
    assert!(!checkpoint.exists() && !cache.exists());

    let program = root.join("mlxcel");
    copy_program(Path::new(env!("CARGO_BIN_EXE_mlxcel")), &program);
    #[cfg(target_os = "linux")]
    for file in linked_files(&program) {
        let place = root.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        copy_program(&file, &place);
    }
    root
}

/// Generates with the copy: on Linux, where that is permitted, with a root of its own that is mounted
/// read-only and has nothing but the container's files; elsewhere with an environment that leads nowhere.
fn run_contained(root: &Path, arguments: &[&str]) -> Run {
    #[cfg(target_os = "linux")]
    if may_isolate() {
        let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && cd / && root=$1 && shift && \
                      exec env -i PATH= HOME=/home/nobody \"$0\" \"$root\" /mlxcel generate --model /bundle --trust-bundle \"$@\"";
        let places = ["/usr/sbin/chroot", "/usr/bin/chroot"];
        let chroot = places.into_iter().find(|path| Path::new(path).exists()).unwrap();
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script, chroot]).arg(root).args(arguments);
        return Run::of(&mut command);
    }
    let nowhere = "/there/is/no/such/folder";
    let mut command = Command::new(root.join("mlxcel"));
    command.env_clear().current_dir("/").args(["generate", "--trust-bundle", "--model"]);
    command.arg(root.join("bundle")).args(arguments);
    for variable in ["PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "MLXCEL_CACHE_DIR"] {
        command.env(variable, nowhere);
    }
    Run::of(&mut command)
}

#[test]
fn a_bundle_alone_generates_the_tokens_of_the_oracle() {
    let root = container();
    let before = files(root.path());
    for (question, case) in questions().iter().take(2) {
        let arguments = ["--backend", "iree", "--precision", "exact", "--json", "--prompt", question];
        let output = run_contained(root.path(), &arguments).json();
        assert_case(&output, case);
        assert_eq!(output["text"], case.completion.as_deref().unwrap());
        assert_eq!(output["timings"]["compile_s"], 0.0);
    }
    assert!(files(root.path()) == before, "something was written");
}

#[test]
fn untrusted_bundles_are_rejected_and_the_error_says_how_to_trust_them() {
    let root = container();
    let mut command = Command::new(root.path().join("mlxcel"));
    command.args(["generate", "--prompt", "Hi", "--precision", "exact", "--model"]);
    command.arg(root.path().join("bundle")).env_clear().env("HOME", root.path()).current_dir("/");
    Run::of(&mut command).refused(1, &["--trust-bundle", "compiler"]);
}

#[test]
fn a_flipped_bit_is_a_one_line_error() {
    let root = container();
    let programs = root.path().join("bundle/programs");
    let (program, mut bytes) = files(&programs).pop_first().unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(programs.join(program), bytes).unwrap();
    run_contained(root.path(), &["--precision", "exact", "--prompt", "Hi"]).refused(2, &["checksum"]);
}

/// An engine that has the programs of a bundle and no others.
fn bundled(folder: &Path) -> IreeBackend {
    let engine = IreeBackend::new().with_compiler("/there/is/no/iree-compile");
    engine.with_cache_dir("/there/is/no/cache").with_trusted_bundle(folder)
}

/// The contract is held with the programs that are there, whatever the kit does: growing caches, rows
/// together, scoring, embedding.
#[test]
fn a_bundle_passes_the_conformance_suite() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("bundle");
    let load = LoadOptions::default().with_precision(Precision::Exact).with_capacity(300).with_sequences(2);
    let options = BundleOptions::from(load).with_every_position(true).with_hidden_states(true);
    let engine = IreeBackend::new().with_cache_dir(cache_dir());
    let source = Fixture::named("llama").path.into();
    let manifest = mlxcel_session::iree::bundle::write(&engine, &source, &folder, &options).unwrap();
    assert_eq!((manifest.lengths.as_slice(), manifest.programs.len()), (&[448][..], 14));

    let bundled = bundled(&folder);
    let load = LoadOptions::default().with_precision(Precision::Exact);
    // Its programs have no room for adapters.
    let room = load.clone().with_adapters(AdapterLimits::new(1, 4));
    let error = bundled.load(&folder.clone().into(), &room).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("adapters")));
    let report = run_all(&Subject::new(bundled, folder).with_load(load), &Expectations::none());
    assert!(report.passed(), "{report}");
}

#[test]
fn a_bundle_with_room_runs_adapters_without_a_compiler() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("bundle");
    let adapters = ["adapters/llama-attention", "adapters/llama-all-gguf"].map(fixture);
    let model = Fixture::named("llama").path;
    let [first, second] = ["poems", "laws"].map(str::to_owned);
    let named = [
        format!("{first}={}", adapters[0].display()),
        format!("{second}={}", adapters[1].join("adapter.gguf").display()),
    ];
    let places = ["--model", model.to_str().unwrap(), "--out", folder.to_str().unwrap(), "--json"];
    let more = ["--context", "150", "--precision", "exact", "--adapter", &named[0], "--adapter", &named[1]];
    let written = Run::of(bundle(&places).args(more)).json();
    // As much room as the adapters need.
    let expected = serde_json::json!({ "slots": 2, "rank": 5, "included": [first, second] });
    assert_eq!(written["adapters"], expected);
    let bundled = bundled(&folder);
    let load = LoadOptions::default().with_precision(Precision::Exact);
    for (slots, rank, field) in [(3, 5, "adapter_slots"), (1, 6, "adapter_rank")] {
        let asked = load.clone().with_adapters(AdapterLimits::new(slots, rank));
        let error = bundled.load(&folder.clone().into(), &asked).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
    }
    let asked = load.with_adapters(AdapterLimits::new(1, 4));
    let model = bundled.load(&folder.clone().into(), &asked).unwrap();
    assert_eq!(model.capabilities().adapters, Some(AdapterLimits::new(2, 5)));
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for (name, source) in [(first, &adapters[0]), (second, &adapters[1])] {
        let adapter = model.load_adapter(&folder.join("adapters").join(name).into()).unwrap();
        for case in (Fixture { name: "adapter", path: source.clone() }).cases() {
            let own = SequenceOptions::default().with_adapter(&adapter);
            let sequence = session.open_with(&own).unwrap();
            let row = Row::new(sequence, &case.prompt, Want::logits());
            let logits = session.run_row(row, &Control::default()).unwrap().into_logits().unwrap();
            let largest = case.prefill_logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
            for (logit, expected) in logits.iter().zip(&case.prefill_logits) {
                assert!((logit - expected).abs() < 1e-4 * largest, "{logit} {expected}");
            }
            session.close(sequence).unwrap();
        }
    }
}

/// A bundle as text of the small fixture: quick, since nothing is compiled.
fn quick(out: &Path, more: &[&str]) -> Run {
    let model = Fixture::named("llama").path;
    let arguments = ["--model", model.to_str().unwrap(), "--out", out.to_str().unwrap(), "--context", "100"];
    let target: &[&str] = if more.contains(&"--target") { &[] } else { &["--target", "stablehlo"] };
    Run::of(bundle(&arguments).args(target).args(more))
}

#[test]
fn failed_bundles_report_one_line_and_leave_no_files() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("bundle");
    quick(&out, &["--target", "steam:1"]).refused(2, &["steam", "llvm-cpu"]);
    quick(&out, &["--target", "llvm-cpu:abacus"]).refused(2, &["abacus", "znver4"]);
    quick(&out, &["--target", "+avx2"]).refused(2, &["+avx2"]);
    quick(&out, &["--tune"]).refused(2, &["--tune", "llvm-cpu:host"]);
    quick(&out, &["--context", "0"]).refused(2, &["--context"]);
    quick(&out, &["--sequences", "0"]).refused(2, &["sequences"]);
    quick(&place.path().join("none/bundle"), &[]).refused(2, &["none"]);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);

    let first = quick(&out, &[]);
    assert!(first.status == 0 && first.out.contains("stablehlo: 2 programs"), "{first:?}");
    quick(&out, &[]).refused(2, &["already"]);
    let before = files(&out);
    let second = quick(&out, &["--force", "--no-weights", "--json"]).json();
    assert_eq!((&second["weights_included"], &second["context"]), (&Value::Bool(false), &100.into()));
    assert!(files(&out).len() < before.len());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn compiler_output_is_dumped_and_summarized() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("inspected");
    let model = Fixture::named("llama").path;
    let arguments = ["--model", model.to_str().unwrap(), "--inspect", folder.to_str().unwrap()];
    let summaries = Run::of(bundle(&arguments).arg("--json")).json();
    let decode = &summaries[2];
    assert_eq!(decode["program"], "1@640");
    for figure in ["dispatches", "kernels", "weight_bytes", "kv_bytes", "bytes_read", "bytes_written"] {
        assert!(decode[figure].as_u64().unwrap() > 0, "{figure}");
    }
    assert!(decode["largest"][0]["name"].is_string());
    assert!(fs::read_to_string(folder.join("summary.txt")).unwrap().contains("program 1@640"));
    Run::of(&mut bundle(&arguments)).refused(2, &["not empty"]);
    Run::of(bundle(&arguments).args(["--out", "x"])).refused(2, &[]);
}

#[cfg(unix)]
#[test]
fn signals_clean_up_and_the_next_run_removes_leftovers_of_killed_runs() {
    let place = tempfile::tempdir().unwrap();
    let [out, temporary, cache] = ["out", "tmp", "cache"].map(|name| {
        let folder = place.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    });
    // A compiler that does not end.
    let compiler = place.path().join("iree-compile");
    let script =
        "#!/bin/sh\n[ \"$1\" = --version ] && exec echo '  IREE compiler version 3.13.0'\nexec sleep 600\n";
    write_script(&compiler, script);
    let model = Fixture::named("llama").path;
    let names = |folder: &Path| -> BTreeSet<_> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let start = || {
        let mut command = bundle(&["--context", "100", "--model", model.to_str().unwrap()]);
        command.arg("--out").arg(out.join("bundle")).env("MLXCEL_IREE_COMPILER", &compiler);
        command.env("TMPDIR", &temporary).env("MLXCEL_CACHE_DIR", &cache).spawn().unwrap()
    };
    let wait_for_work = |child: &mut std::process::Child, before: &[BTreeSet<_>; 2]| {
        // The earlier leftovers are gone, and others are there.
        let begun = |folder, before| {
            let now = names(folder);
            !now.is_empty() && now.is_disjoint(before)
        };
        while !begun(&out, &before[0]) || !begun(&temporary, &before[1]) {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let signals = ["-TERM", "-KILL", if crate::ignores_interrupts() { "-TERM" } else { "-INT" }];
    for signal in signals {
        let before = [names(&out), names(&temporary)];
        let mut child = start();
        wait_for_work(&mut child, &before);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert!(!child.wait().unwrap().success());
        let left = names(&out).len() + names(&temporary).len();
        assert_eq!(left > 0, signal == "-KILL", "{signal} left {left}");
    }
}
