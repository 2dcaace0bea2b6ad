//! A program that is started in an untrusted folder: nothing that lies there is run.
#![cfg(all(feature = "iree", feature = "portable", unix))]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Fixture, cache_dir, copy_program, write_script};

/// A script that leaves a mark.
fn trap(folder: &Path, name: &str) {
    let text = format!("#!/bin/sh\necho {name} >> {}/mark\nexit 1\n", folder.display());
    write_script(&folder.join(name), &text);
}

/// A folder in which every program and module that could be looked for leaves a mark, and a copy of the
/// program that is no longer in the workspace.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["python3", "iree-compile", "nvidia-smi"] {
        trap(folder.path(), name);
    }
    let module = format!("open('{}/mark', 'a').write('iree')\n", folder.path().display());
    fs::create_dir_all(folder.path().join("iree/compiler")).unwrap();
    fs::write(folder.path().join("iree/__init__.py"), &module).unwrap();
    fs::write(folder.path().join("iree/compiler/__init__.py"), &module).unwrap();
    copy_program(Path::new(env!("CARGO_BIN_EXE_mlxcel")), &folder.path().join("mlxcel"));
    folder
}

/// Runs the copy in its folder.
fn generate(folder: &Path, path: &str, cache: &Path) -> Output {
    let model = Fixture::named("llama").path;
    let mut command = Command::new(folder.join("mlxcel"));
    command.args(["generate", "--backend", "iree", "--tokens", "1,2,3", "-n", "4", "--model"]).arg(model);
    command.env_clear().env("PATH", path).env("HOME", folder).env("MLXCEL_CACHE_DIR", cache);
    command.current_dir(folder).output().unwrap()
}

#[test]
fn nothing_in_the_working_directory_is_run() {
    let folder = folder();
    let output = generate(folder.path(), ".::iree:/usr/bin:/bin", &folder.path().join("cache"));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(!folder.path().join("mark").exists(), "{line}");
    // Where this machine has a compiler for all users, it is used.
    assert!(output.status.success() || line.contains("pip install iree-base-compiler"), "{line}");
}

#[test]
fn python_in_the_working_directory_is_not_started() {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    command.args(["verify", "--backend", "portable", "-n", "1", "--tokens", "1,2,3", "--model"]);
    command.arg(Fixture::named("llama").path).env("PATH", ".::").current_dir(folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("transformers was skipped: there is no python3"), "{said}");
    assert!(!folder.path().join("mark").exists());
}

#[test]
fn python_is_not_started_for_cached_programs() {
    let model = Fixture::named("llama").path;
    let mut warm = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    warm.args(["generate", "--backend", "iree", "--tokens", "1,2,3", "-n", "4", "--model"]).arg(model);
    let output = warm.env("MLXCEL_CACHE_DIR", cache_dir()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let folder = folder();
    // Of this folder no compiler is taken, and the Python that is named here is one that leaves a mark.
    fs::remove_file(folder.path().join("iree-compile")).unwrap();
    let output = generate(folder.path(), folder.path().to_str().unwrap(), &cache_dir());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!folder.path().join("mark").exists());
}
