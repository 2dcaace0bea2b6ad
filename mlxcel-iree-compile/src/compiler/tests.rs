//! The compiler in good and bad health. Bad health is a script in its place.
#![cfg(unix)]

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, ErrorKind};
use tempfile::TempDir;

use super::*;

const PROGRAM: &str = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}";

/// How long a test waits for other processes on a busy machine; what it guards against would take five times
/// as long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a folder `lib/python3.N` has the compiler.
const PACKAGED: &str = "site-packages/iree/compiler/_mlir_libs/iree-compile";

pub(crate) fn real() -> Compiler {
    Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`")
}

fn options() -> CompileOptions {
    CompileOptions::new(crate::testing::host())
}

/// Writes an executable shell script.
fn script(path: &Path, body: &str) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    crate::testing::write_script(path, &format!("#!/bin/sh\n{body}\n"));
    path.to_owned()
}

/// A compiler that is a script.
fn fake(body: &str) -> (TempDir, Compiler) {
    let folder = tempfile::tempdir().unwrap();
    let path = script(&folder.path().join("iree-compile"), body);
    let compiler = Compiler { path };
    (folder, compiler)
}

#[test]
fn a_program_is_compiled() {
    let compiler = real();
    assert_eq!(compiler.revision(None).unwrap().release(), Some(RELEASE));
    let bytes = compiler.compile(PROGRAM, &options(), None).unwrap();
    assert!(bytes.len() > 1000);
    let again = compiler.compile(PROGRAM, &options(), None).unwrap();
    assert!(bytes == again, "an artifact does not depend on the folder that it was made in");
}

#[test]
fn a_compile_error_has_the_first_diagnostic() {
    let program = PROGRAM.replace("%a, %a", "%a, %nowhere");
    let error = real().compile(&program, &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
    assert!(error.message().starts_with("program.mlir:2:"), "{error}");
    assert!(error.message().contains("undeclared SSA value"), "{error}");
    assert!(error.source().unwrap().to_string().lines().count() <= 12);

    let mut unknown = options();
    unknown.flags.push("--no-such-flag".to_owned());
    let error = real().compile(PROGRAM, &unknown, None).unwrap_err();
    assert!(error.message().contains("--no-such-flag"), "{error}");
}

#[test]
fn the_compiler_search_follows_its_documented_order() {
    let folder = tempfile::tempdir().unwrap();
    let at = |place: &str| script(&folder.path().join(place), "exit 0");
    let explicit = at("explicit/compiler");
    let variable = at("variable/compiler");
    let dist = at("dist/bin/iree-compile");
    let on_path = at("path/iree-compile");
    let environment = at("venv/bin/iree-compile");
    let mut search = SearchEnvironment {
        compiler: Some(variable.clone()),
        dist: Some(folder.path().join("dist")),
        path: vec![folder.path().join("empty"), folder.path().join("path")],
        environments: vec![folder.path().join("venv")],
        ..SearchEnvironment::default()
    };
    assert_eq!(search.find(Some(&explicit)).unwrap().unwrap(), explicit);
    assert_eq!(search.find(None).unwrap().unwrap(), variable);
    search.compiler = None;
    assert_eq!(search.find(None).unwrap().unwrap(), dist);
    search.dist = None;
    assert_eq!(search.find(None).unwrap().unwrap(), on_path);
    search.path.clear();
    assert_eq!(search.find(None).unwrap().unwrap(), environment);

    // pip's script starts the program in the same environment's packages.
    let program = at("venv/lib/python3.12/site-packages/iree/compiler/_mlir_libs/iree-compile");
    assert_eq!(search.find(None).unwrap().unwrap(), program);
}

#[test]
fn the_compiler_is_found_in_python_packages_without_starting_python() {
    let folder = tempfile::tempdir().unwrap();
    let at = |place: &str| script(&folder.path().join(place).join(PACKAGED), "exit 0");
    let started = folder.path().join("started");
    let python = script(&folder.path().join("venv/bin/python3"), &format!(": > {}", started.display()));
    let mut search = SearchEnvironment { python: Some(python), ..SearchEnvironment::default() };
    assert_eq!(search.find(None).unwrap(), None);

    search.user_base = Some(folder.path().join("home/.local"));
    let users = at("home/.local/lib/python3.12");
    assert_eq!(search.find(None).unwrap().unwrap(), users);

    // The Python on PATH is asked before the user's packages, and its newest version first.
    let old = at("venv/lib/python3.9");
    assert_eq!(search.find(None).unwrap().unwrap(), old);
    let new = at("venv/lib/python3.13");
    assert_eq!(search.find(None).unwrap().unwrap(), new);
    assert!(!started.exists());
}

#[test]
fn a_symlink_to_python_leads_to_its_installations_packages() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let compiler = script(&root.join("installed/lib/python3.12").join(PACKAGED), "exit 0");
    let python = script(&root.join("installed/bin/python3"), "exit 1");
    fs::create_dir(root.join("bin")).unwrap();
    std::os::unix::fs::symlink(python, root.join("bin/python3")).unwrap();
    let search = SearchEnvironment { python: Some(root.join("bin/python3")), ..SearchEnvironment::default() };
    assert_eq!(search.find(None).unwrap().unwrap(), compiler);
}

#[test]
fn a_configured_compiler_must_exist() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none");
    script(&folder.path().join("path/iree-compile"), "exit 0");
    let on_path =
        SearchEnvironment { path: vec![folder.path().join("path")], ..SearchEnvironment::default() };

    let error = on_path.find(Some(&missing)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Toolchain);
    assert_eq!(error.context("path"), missing.to_str());

    let variable = SearchEnvironment { compiler: Some(missing.clone()), ..SearchEnvironment::default() };
    assert!(variable.find(None).unwrap_err().message().contains("MLXCEL_IREE_COMPILER"));
    let dist = SearchEnvironment { dist: Some(missing.clone()), ..SearchEnvironment::default() };
    assert!(dist.find(None).unwrap_err().message().contains("IREE_DIST"));

    fs::write(&missing, "text").unwrap();
    assert!(variable.find(None).unwrap_err().message().contains("cannot be executed"));
}

#[test]
fn a_missing_compiler_error_has_the_command_to_install_it() {
    assert_eq!(SearchEnvironment::default().find(None).unwrap(), None);
    let error = SearchEnvironment::default().nowhere();
    assert_eq!(error.kind(), ErrorKind::Toolchain);
    let line = format!("`pip install iree-base-compiler=={RELEASE}`");
    assert!(error.message().contains(&line), "{error}");
    assert!(error.context("looked in").unwrap().contains("PATH"), "{error}");
}

#[test]
fn another_release_is_rejected_with_both_revisions() {
    let (_folder, compiler) = fake("echo '  IREE compiler version 3.12.1rc7 @ abc'");
    let error = compiler.revision(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Toolchain);
    assert!(error.message().contains("3.12.1") && error.message().contains("3.13.0"), "{error}");
    assert_eq!(error.context("compiler revision"), Some("3.12.1rc7 @ abc"));
    assert_eq!(error.context("runtime revision"), Some("3.13.0"));
}

#[test]
fn a_program_that_is_not_the_compiler_is_rejected() {
    for body in ["echo 'clang version 17'", "exit 3", "kill -9 $$"] {
        let (_folder, compiler) = fake(body);
        assert_eq!(compiler.revision(None).unwrap_err().kind(), ErrorKind::Toolchain, "{body}");
    }
    let compiler = Compiler { path: "/nowhere/iree-compile".into() };
    assert_eq!(compiler.revision(None).unwrap_err().kind(), ErrorKind::Toolchain);
    assert_eq!(compiler.compile(PROGRAM, &options(), None).unwrap_err().kind(), ErrorKind::Toolchain);
}

#[test]
fn a_compiler_that_is_killed_midway_is_an_error() {
    let (_folder, compiler) = fake("echo half > program.vmfb; echo working >&2; kill -9 $$");
    let error = compiler.compile(PROGRAM, &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
    assert!(error.message().contains("killed by signal 9"), "{error}");
    assert_eq!(error.source().unwrap().to_string(), "working");

    let (_folder, compiler) = fake("kill -SEGV $$");
    let error = compiler.compile(PROGRAM, &options(), None).unwrap_err();
    assert!(error.message().contains("signal 11"), "{error}");
}

#[test]
fn a_compiler_that_writes_nothing_is_an_error() {
    for body in ["exit 0", ": > program.vmfb"] {
        let (_folder, compiler) = fake(body);
        assert_eq!(compiler.compile(PROGRAM, &options(), None).unwrap_err().kind(), ErrorKind::Compile);
    }
}

#[test]
fn a_full_disk_is_reported_as_such() {
    let (_folder, compiler) =
        fake("echo 'LLVM ERROR: IO failure on output stream: No space left on device' >&2; exit 1");
    let error = compiler.compile(PROGRAM, &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
}

#[test]
fn large_compiler_output_neither_blocks_nor_floods_the_error() {
    let (_folder, compiler) = fake(
        "echo 'program.mlir:1:1: error: no' >&2; i=0; while [ $i -lt 40000 ]; do echo $i $i $i $i $i >&2; i=$((i+1)); done; exit 1",
    );
    let error = compiler.compile(PROGRAM, &options(), None).unwrap_err();
    assert_eq!(error.message(), "program.mlir:1:1: error: no");
    assert!(error.source().unwrap().to_string().len() < 8192);
}

#[test]
fn cancelling_kills_the_compiler_and_its_children() {
    let pids = tempfile::tempdir().unwrap();
    let file = pids.path().join("pid");
    let (_folder, compiler) =
        fake(&format!("sleep 600 & echo $! > {0}.part; mv {0}.part {0}; wait", file.display()));
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let began = Instant::now();
    let work = thread::spawn(move || compiler.compile(PROGRAM, &options(), Some(&token)).unwrap_err());
    while !file.exists() {
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
    cancel.cancel();
    assert_eq!(work.join().unwrap().kind(), ErrorKind::Cancelled);
    assert!(began.elapsed() < PATIENCE);
    let pid = fs::read_to_string(&file).unwrap();
    let proc = Path::new("/proc").join(pid.trim());
    let gone = || match fs::read_to_string(proc.join("stat")) {
        // A process whose parent is gone may wait to be reaped by its new parent.
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    let deadline = Instant::now() + PATIENCE;
    while !gone() {
        assert!(Instant::now() < deadline, "the compiler's own child survived");
        thread::sleep(Duration::from_millis(5));
    }
}
