//! The program `cache`, as a user runs it.
#![cfg(feature = "iree")]

use std::fs;
use std::path::Path;

use mlxcel_core::{Backend, LoadOptions, Precision};
use mlxcel_session::iree::IreeBackend;
use serde_json::Value;

use crate::program::{Run, mlxcel};

fn cache(folder: &Path, arguments: &[&str]) -> Run {
    let mut command = mlxcel(&["cache"]);
    Run::of(command.args(arguments).arg("--dir").arg(folder).env_remove("MLXCEL_CACHE_SIZE"))
}

#[track_caller]
fn json(folder: &Path, arguments: &[&str]) -> Value {
    cache(folder, &[arguments, &["--json"]].concat()).json()
}

/// A cache with the programs that a model opens with.
fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let engine = IreeBackend::new().with_cache_dir(crate::support::cache_dir());
    engine.load(&crate::support::Fixture::named("llama").path.into(), &options).unwrap();
    // The tests' own cache may hold more: those that were used last are the model's.
    let cache = mlxcel_session::iree::cache::Cache::open(Some(&crate::support::cache_dir())).unwrap();
    for entry in cache.entries().unwrap().iter().take(2) {
        let name = format!("{}.vmfb", entry.key);
        fs::copy(crate::support::cache_dir().join(&name), folder.path().join(&name)).unwrap();
    }
    folder
}

#[test]
fn cached_programs_are_listed_verified_and_pruned() {
    let folder = filled();
    let listed = json(folder.path(), &[]);
    assert_eq!(listed, json(folder.path(), &["list"]));
    assert_eq!(listed["folder"], folder.path().to_str().unwrap());
    assert_eq!(listed["limit"], 8u64 << 30);
    let entries = listed["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        assert!(entry["target"].as_str().unwrap().starts_with("llvm-cpu:"), "{entry}");
        assert!(entry["program"].as_str().unwrap().starts_with("llama "), "{entry}");
        assert!(entry["compiler"].as_str().unwrap().starts_with("3.13.0"), "{entry}");
        assert!(
            entry["bytes"].as_u64().unwrap() > 1000 && entry["last_used"].as_u64().unwrap() > 1_700_000_000
        );
    }
    let out = cache(folder.path(), &["verify"]).printed();
    assert!(out.contains("2 programs, ") && out.contains(" of 8.0 GiB in "), "{out}");

    let newest = entries[0]["bytes"].to_string();
    let pruned = json(folder.path(), &["prune", "--max-size", &newest]);
    assert_eq!(pruned["removed"]["entries"], 1);
    assert_eq!(pruned["removed"]["bytes"], entries[1]["bytes"]);
    assert_eq!(pruned["entries"].as_array().unwrap(), &entries[..1]);
    cache(folder.path(), &["prune", "--max-size", "-1"]).refused(2, &["--max-size", "'-1'"]);
    let pruned = json(folder.path(), &["prune", "--all"]);
    assert_eq!((&pruned["removed"]["entries"], pruned["entries"].as_array().unwrap().len()), (&1.into(), 0));
}

#[test]
fn corrupt_programs_are_found_and_removed() {
    let folder = filled();
    let entry = json(folder.path(), &[])["entries"][0]["key"].as_str().unwrap().to_owned();
    let path = folder.path().join(format!("{entry}.vmfb"));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let run = cache(folder.path(), &["verify"]);
    assert_eq!((run.status, run.err.trim()), (1, "error: 1 of 2 programs are corrupt"));
    assert!(run.out.contains("damaged: verify a compiled program: its checksum is wrong"), "{run:?}");
    let run = cache(folder.path(), &["verify", "--remove", "--json"]);
    assert_eq!(run.status, 1);
    let found: Value = serde_json::from_str(&run.out).unwrap();
    let problems =
        found["entries"].as_array().unwrap().iter().filter(|entry| !entry["problem"].is_null()).count();
    assert_eq!((problems, &found["removed"]["entries"]), (1, &1.into()));
    assert!(!path.exists());
    assert_eq!(json(folder.path(), &["verify"])["entries"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_arguments_are_one_line_errors() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in
        [&["prune"][..], &["prune", "--all", "--max-size", "1G"], &["prune", "--max-size", "many"], &["burn"]]
    {
        cache(folder.path(), arguments).refused(2, &[]);
    }
    cache(&folder.path().join("none"), &[]).refused(2, &["--dir"]);
    let out = cache(folder.path(), &[]).printed();
    assert!(out.starts_with("0 programs, 0 B of 8.0 GiB in "), "{out}");
}
