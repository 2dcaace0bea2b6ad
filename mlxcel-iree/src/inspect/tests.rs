//! Inspecting a model, and the errors of a program that does not compile.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use mlxcel_core::{Backend, ErrorKind, LoadOptions, ModelSource, Result};

use super::*;
use crate::backend::IreeBackend;
use crate::{CompileBackend, CompileBackends, CompileTarget};

fn fixture() -> ModelSource {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama").into()
}

#[test]
fn inspecting_a_model_dumps_every_stage() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("inspected");
    let summaries = inspect(&IreeBackend::new(), &fixture(), &folder, &InspectOptions::default()).unwrap();
    let programs: Vec<_> = summaries.iter().map(|one| one.program.as_str()).collect();
    assert_eq!(programs, ["128@640", "16@640", "1@640"]);
    for name in ["128-at-640", "1-at-640"] {
        let folder = folder.join(name);
        let names = |sub: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(folder.join(sub)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        assert!(fs::read_to_string(folder.join("program.mlir")).unwrap().contains("func.func public @step"));
        assert!(names("phases").iter().any(|name| name.ends_with("flow.mlir")));
        let code = names("code");
        for end in [".mlir", ".ll", ".s"] {
            assert!(code.iter().any(|name| name.ends_with(end)), "{end}");
        }
        assert!(fs::metadata(folder.join("program.vmfb")).unwrap().len() > 1000);
    }
    let decode = &summaries[2];
    let calls: u64 = decode.largest.iter().map(|dispatch| dispatch.calls).sum();
    assert_eq!(calls, decode.dispatches, "what is read agrees with what the compiler says");
    assert!(decode.largest.iter().any(|dispatch| dispatch.name.starts_with("mlxcel_linear")));
    let Summary { weight_bytes, kv_bytes, bytes_read, .. } = *decode;
    // 127,424 parameters of two bytes, the head being the embedding, and one row more of that.
    assert_eq!((weight_bytes, kv_bytes), (2 * 127_424 + 128, 3 * 2 * 2 * 640 * 16 * 2));
    assert!(bytes_read >= weight_bytes + kv_bytes, "{bytes_read}");
    let read: u64 = decode
        .largest
        .iter()
        .filter(|one| one.name.starts_with("mlxcel_linear"))
        .map(|one| one.calls * one.bytes_read)
        .sum();
    assert!((weight_bytes * 9 / 10..weight_bytes * 11 / 10).contains(&read), "{read} of {weight_bytes}");
    let shown = fs::read_to_string(folder.join("summary.txt")).unwrap();
    assert!(shown.contains("program 1@640 for llvm-cpu:") && shown.contains("mlxcel_linear"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("summary.json")).unwrap()).unwrap();
    assert_eq!(json[2]["dispatches"], decode.dispatches);

    let error = inspect(&IreeBackend::new(), &fixture(), &folder, &InspectOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// The backend for processors, whose code may use no stack: nothing of any size compiles.
#[derive(Debug)]
struct NoStack(std::sync::Arc<dyn CompileBackend>);

impl CompileBackend for NoStack {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn known_architectures(&self) -> Vec<String> {
        self.0.known_architectures()
    }
    fn detect_target(&self) -> Result<CompileTarget> {
        self.0.detect_target()
    }
    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget> {
        self.0.resolve(target)
    }
    fn options(&self, target: &CompileTarget) -> Result<Vec<String>> {
        let keep = |option: &String| !option.contains("stack-allocation-limit");
        let mut options: Vec<_> = self.0.options(target)?.into_iter().filter(keep).collect();
        options.push("--iree-llvmcpu-stack-allocation-limit=16".to_owned());
        Ok(options)
    }
    fn element_types(&self, target: &CompileTarget) -> Vec<mlxcel_stablehlo::ElementType> {
        self.0.element_types(target)
    }
    fn drivers(&self) -> &[&str] {
        self.0.drivers()
    }
}

#[test]
fn a_failed_program_is_kept_and_the_error_names_the_operation() {
    let builtin = CompileBackends::builtin();
    let cpu = builtin.get("llvm-cpu").unwrap();
    let mut backends = CompileBackends::empty();
    backends.register("llvm-cpu", move || Ok(std::sync::Arc::new(NoStack(cpu.clone())))).unwrap();
    let engine = IreeBackend::new().with_compile_backends(backends);
    let place = tempfile::tempdir().unwrap();
    let error = inspect(&engine, &fixture(), place.path(), &InspectOptions::default()).unwrap_err();
    let loaded =
        engine.clone().with_cache_dir(place.path().join("cache")).load(&fixture(), &LoadOptions::default());
    for error in [error, loaded.map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Compile);
        assert!(error.message().contains("stack allocation limit"), "{error}");
        assert!(error.context("operation").is_some(), "{error}");
        assert!(error.context("near").is_some_and(|place| place.contains("model.")), "{error}");
    }
    assert!(place.path().join("128-at-640/program.mlir").exists());
    assert!(fs::read_dir(place.path().join("128-at-640/phases")).unwrap().count() > 3);
}
