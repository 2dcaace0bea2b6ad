//! What changes a key, and what does not.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use mlxcel_iree_target::{Revision, from_hex, hex};

use super::Key;
use super::key::{FORMAT, ProgramSum};
use crate::compiler::{CompileOptions, Compiler, Identity};
use crate::testing::{resolved, write_script};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn identity(revision: &str, checksum: u8) -> Identity {
    Identity { revision: Revision::recorded(revision).unwrap(), checksum: [checksum; 32] }
}

fn options(target: &str) -> CompileOptions {
    CompileOptions::new(resolved(target))
}

fn key(format: &str, version: &str, program: &str, options: &CompileOptions, compiler: &Identity) -> String {
    Key::new(ProgramSum::of(format, version, program, options), compiler).name()
}

/// How weights must lie for a program follows from its target and this crate's version, and the text of a
/// program that reads panels is that of the kernels which do. So the layout needs no part of its own in a
/// key: where it differs, keys do, even of one and the same text.
#[test]
fn the_layout_of_weights_is_implied_by_the_key() {
    let compiler = identity("3.13.0 @ a", 1);
    let keys: BTreeSet<String> = ["x86-64-v4", "x86-64-v3", "x86-64-v2", "neoverse-n1"]
        .map(|cpu| key(FORMAT, VERSION, "program", &options(&format!("llvm-cpu:{cpu}")), &compiler))
        .into();
    assert_eq!(keys.len(), 4, "targets with vectors of 16, 8, no and 4 lanes");
}

#[test]
fn every_ingredient_changes_the_cache_key() {
    let base = options("llvm-cpu:x86-64-v3");
    let compiler = identity("3.13.0 @ a", 1);
    let flags = |change: fn(&mut Vec<String>)| {
        let mut options = base.clone();
        change(&mut options.flags);
        options
    };
    let more = flags(|flags| flags.push("--more".to_owned()));
    let fewer = flags(|flags| drop(flags.pop()));
    let order = flags(|flags| flags.reverse());
    let joined = flags(|flags| *flags = vec![flags.concat()]);
    let level = flags(|flags| flags[1] = "--iree-opt-level=O2".to_owned());
    let mut keys = vec![
        key(FORMAT, VERSION, "program", &base, &compiler),
        key("mlxcel artifact 0", VERSION, "program", &base, &compiler),
        key(FORMAT, "0.0.1", "program", &base, &compiler),
        key(FORMAT, VERSION, "program ", &base, &compiler),
        key(FORMAT, VERSION, "", &base, &compiler),
        key(FORMAT, VERSION, "program", &base, &identity("3.13.0 @ b", 1)),
        key(FORMAT, VERSION, "program", &base, &identity("3.13.0 @ a", 2)),
    ];
    keys.extend(
        [&more, &fewer, &order, &joined, &level]
            .map(|options| key(FORMAT, VERSION, "program", options, &compiler)),
    );
    keys.extend(
        [
            "llvm-cpu:x86-64-v4",
            "llvm-cpu:x86-64-v3,+aes",
            "llvm-cpu:x86-64-v3,-fma",
            "llvm-cpu:haswell",
            "llvm-cpu:x86_64/generic",
            "llvm-cpu:aarch64/generic",
            "llvm-cpu:neoverse-n1",
            "cuda:sm_89",
            "cuda:sm_80",
            "cuda:sm_89,+ptx80",
            "rocm:gfx942",
            "rocm:gfx942,+xnack",
            "rocm:gfx942,-xnack",
            "vulkan-spirv:rdna3",
            "metal-spirv:macos",
            "metal-spirv:ios",
        ]
        .map(|target| key(FORMAT, VERSION, "program", &options(target), &compiler)),
    );
    // What one part ends with is not what the next begins with.
    keys.push(key("mlxcel artifact 2", "0.1", ".0program", &base, &compiler));
    keys.push(key("mlxcel artifact 20.1.0", "", "program", &base, &compiler));
    let different: BTreeSet<&String> = keys.iter().collect();
    assert_eq!(different.len(), keys.len(), "{keys:#?}");
    assert!(keys.iter().all(|key| key.len() == 64 + 1 + 16));
}

#[test]
fn equal_ingredients_give_equal_cache_keys() {
    let base = key(FORMAT, VERSION, "program", &options("llvm-cpu:znver4"), &identity("3.13.0 @ a", 1));
    let again = |target: &str| {
        let options = options(target).with_label("in other words");
        Key::new(ProgramSum::new("program", &options), &identity("3.13.0 @ a", 1)).name()
    };
    for spelling in
        ["llvm-cpu:znver4", "LLVM-cpu:znver4", "llvm-cpu:x86_64/znver4", "llvm-cpu:znver4,+avx2,+fma"]
    {
        assert_eq!(again(spelling), base, "{spelling}");
    }
}

/// What the test below starts as a process of its own; by itself it has nothing to do.
#[test]
fn in_another_environment() {
    let Some(answer) = env::var_os("MLXCEL_TEST_KEY") else { return };
    let compiler = Compiler::locate(None).unwrap();
    let identity =
        Identity { revision: compiler.revision(None).unwrap(), checksum: compiler.checksum(None).unwrap() };
    let key = Key::new(ProgramSum::new("program", &options("llvm-cpu:host")), &identity);
    fs::write(answer, key.name()).unwrap();
}

/// The key of one program for this machine, found by a process that has `variables` and works in `folder`.
fn key_with(folder: &Path, compiler: &Path, variables: &[(&str, &str)]) -> String {
    let script = "#!/bin/sh\necho '  IREE compiler version 3.13.0 @ one'\n";
    fs::create_dir_all(compiler.parent().unwrap()).unwrap();
    write_script(compiler, script);
    let answer = folder.join("answer");
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", "cache::key_tests::in_another_environment"])
        .current_dir(folder)
        .env("MLXCEL_TEST_KEY", &answer)
        .env("MLXCEL_IREE_COMPILER", compiler)
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    fs::read_to_string(answer).unwrap()
}

#[test]
fn cache_keys_ignore_paths_users_and_other_variables() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let base = key_with(one.path(), &one.path().join("iree-compile"), &[]);
    let elsewhere = other.path().join("another/place/iree-compile");
    assert_eq!(key_with(other.path(), &elsewhere, &[]), base);
    let temporary = other.path().to_str().unwrap();
    let user = [
        ("HOME", "/nowhere"),
        ("USER", "nobody"),
        ("LOGNAME", "nobody"),
        ("LANG", "tr_TR.UTF-8"),
        ("LC_ALL", "C"),
        ("TZ", "Asia/Tokyo"),
        ("TMPDIR", temporary),
        ("XDG_CACHE_HOME", "/nowhere/cache"),
        ("RUST_LOG", "trace"),
        ("RUST_BACKTRACE", "1"),
        ("MLXCEL_CACHE_DIR", "/nowhere/mlxcel"),
        ("MLXCEL_CACHE_SIZE", "1G"),
        ("MLXCEL_BACKEND", "portable"),
        ("MLXCEL_COMPILE_TARGET", "cuda:sm_89"),
        ("PATH", "/nowhere"),
        ("HOSTNAME", "other"),
    ];
    for variable in user {
        assert_eq!(key_with(other.path(), &elsewhere, &[variable]), base, "{variable:?}");
    }
    assert_eq!(key_with(other.path(), &elsewhere, &user), base);
}

#[test]
fn sums_are_written_and_read_as_digits() {
    let sum: [u8; 32] = std::array::from_fn(|at| (at * 9) as u8);
    assert_eq!(from_hex(&hex(&sum)), Some(sum));
    assert_eq!(from_hex(""), None);
    assert_eq!(from_hex(&"0".repeat(63)), None);
    assert_eq!(from_hex(&"0".repeat(66)), None);
    assert_eq!(from_hex(&"0g".repeat(32)), None);
}
