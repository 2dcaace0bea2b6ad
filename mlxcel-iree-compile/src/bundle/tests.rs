//! Bundles for which nothing is compiled.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use mlxcel_core::{ErrorKind, LoadOptions, Precision};
use mlxcel_graph::GraphModelOptions;
use mlxcel_iree_target::ProgramOptions;
use mlxcel_iree_target::manifest::STABLEHLO;
use mlxcel_models::Checkpoint;

use super::targets::BundleTarget;
use super::{BundleOptions, write};
use crate::toolchain::Toolchain;

fn llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama")
}

#[test]
fn weights_are_laid_out_for_each_targets_kernels() {
    let decoder = Checkpoint::open(llama()).unwrap().decoder().unwrap();
    let mut graph = GraphModelOptions::default();
    graph.precision = Precision::Exact;
    let expected = [
        ("llvm-cpu:x86-64-v4", "panels-16"),
        ("llvm-cpu:x86-64-v3", "panels-8"),
        ("llvm-cpu:neoverse-n1", "panels-4"),
        ("llvm-cpu:x86-64-v2", "rows"),
        ("cuda:sm_86", "rows"),
        (STABLEHLO, "rows"),
    ];
    let options = BundleOptions::default().with_targets(expected.map(|(target, _)| target));
    let (toolchain, wanted) = (Toolchain::default(), ProgramOptions::default());
    let targets = BundleTarget::all(&toolchain, &wanted, &options, &decoder, &mut graph).unwrap();
    let found: Vec<String> = targets.iter().map(|target| target.layouts().unwrap().to_string()).collect();
    assert_eq!(found, expected.map(|(_, layout)| layout));
}

#[test]
fn an_error_of_the_cache_precedes_the_bundle() {
    // In a process of its own, with another environment.
    let Some(place) = env::var_os("MLXCEL_TEST_PLACE") else {
        let place = tempfile::tempdir().unwrap();
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", "bundle::tests::an_error_of_the_cache_precedes_the_bundle"])
            .envs([("MLXCEL_TEST_PLACE", place.path().as_os_str()), ("MLXCEL_CACHE_SIZE", "much".as_ref())])
            .stdout(Stdio::null())
            .status();
        assert!(ended.unwrap().success());
        return;
    };
    let options = BundleOptions::from(LoadOptions::default().with_capacity(100)).with_targets([STABLEHLO]);
    let (toolchain, wanted) = (Toolchain::default(), ProgramOptions::default());
    let out = Path::new(&place).join("bundle");
    let error = write(&toolchain, &wanted, &llama().into(), &out, &options).unwrap_err();
    assert_eq!(
        (error.kind(), error.context("variable")),
        (ErrorKind::InvalidInput, Some("MLXCEL_CACHE_SIZE"))
    );
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}
