//! Targets from an engine's options and from the environment, to a model that runs or an error before
//! anything is compiled.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mlxcel_core::{
    Backend, Error, ErrorKind, GenerateExt, GenerateOptions, LoadOptions, Precision, SessionOptions,
};
use mlxcel_iree_target::CompileTarget;

use crate::Processor;
use crate::backend::IreeBackend;
use mlxcel_iree_compile::cache::Cache;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama")
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact)
}

/// The error of opening a model where no compiler would be found.
fn refused(engine: IreeBackend) -> Error {
    let engine = engine.with_compiler("/nowhere/iree-compile");
    engine.load(&fixture().into(), &options()).map(drop).unwrap_err()
}

#[test]
fn unsupported_targets_are_rejected_before_compiling() {
    let other =
        if Processor::detect().family() == "x86_64" { "llvm-cpu:neoverse-n1" } else { "llvm-cpu:znver4" };
    for target in ["cuda:sm_89", "vulkan-spirv:rdna3", other] {
        let error = refused(IreeBackend::new().with_compile_target(target.parse().unwrap()));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.context("target"), Some(target));
        assert!(error.context("device").or(error.context("processor")).is_some(), "{error}");
    }
    let error = refused(IreeBackend::new().with_compile_target("llvm-cpu:abacus".parse().unwrap()));
    assert_eq!((error.kind(), error.context("target")), (ErrorKind::InvalidInput, Some("llvm-cpu:abacus")));
}

#[test]
fn a_model_runs_compiled_for_a_lesser_processor() {
    let target: CompileTarget = format!("llvm-cpu:{}/generic", env::consts::ARCH).parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let generate = |engine: IreeBackend| {
        let model = engine.with_cache_dir(folder.path()).load(&fixture().into(), &options()).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        session.generate_greedy(&[12, 7, 3], &GenerateOptions::new(4)).unwrap().tokens
    };
    let lesser = generate(IreeBackend::new().with_compile_target(target.clone()));
    assert_eq!(lesser, generate(IreeBackend::new()));
    let entries = Cache::open(Some(folder.path())).unwrap().entries().unwrap();
    let of = |target: &str| entries.iter().filter(|entry| entry.target == target).count();
    let lesser = of(&target.to_string());
    assert!(lesser >= 2 && entries.len() >= lesser + 2, "{entries:#?}");
}

/// What the test below starts as a process of its own; by itself it has nothing to do.
#[test]
fn in_an_environment() {
    let Some(wanted) = env::var_os("MLXCEL_TEST_WANTED") else { return };
    let error = refused(IreeBackend::new());
    let text = format!("{:?}: {error}", error.kind());
    assert!(text.contains(&*wanted.to_string_lossy()), "{text}");
    // Options win, so this gets as far as looking for the compiler.
    let error = refused(IreeBackend::new().with_compile_target("llvm-cpu:host".parse().unwrap()));
    let expected = if env::var_os("MLXCEL_CACHE_SIZE").is_some() {
        ErrorKind::InvalidInput
    } else {
        ErrorKind::Toolchain
    };
    assert_eq!(error.kind(), expected, "{error}");
}

#[test]
fn options_take_precedence_over_the_environment() {
    for (variables, wanted) in [
        (&[("MLXCEL_COMPILE_TARGET", "cuda:sm_89")][..], "Unsupported"),
        (&[("MLXCEL_COMPILE_TARGET", "cuda:sm_2048")], "MLXCEL_COMPILE_TARGET: cuda:sm_2048"),
        (&[("MLXCEL_COMPILE_TARGET", "abacus")], "target: llvm-cpu:abacus"),
        (&[("MLXCEL_COMPILE_BACKEND", "tpu")], "MLXCEL_COMPILE_BACKEND: tpu"),
        (
            &[("MLXCEL_COMPILE_BACKEND", "vulkan-spirv"), ("MLXCEL_COMPILE_TARGET", "rdna3")],
            "target: vulkan-spirv:rdna3",
        ),
        (&[("MLXCEL_COMPILE_BACKEND", ""), ("MLXCEL_COMPILE_TARGET", "")], "Toolchain"),
        (&[("MLXCEL_CACHE_SIZE", "lots")], "variable: MLXCEL_CACHE_SIZE"),
    ] {
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", "backend::engine_tests::in_an_environment"])
            .envs(variables.iter().copied())
            .env("MLXCEL_TEST_WANTED", wanted)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{variables:?}");
    }
}
