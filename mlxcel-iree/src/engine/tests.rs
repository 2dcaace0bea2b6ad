//! The engine from a checkpoint folder on: what it starts, what it keeps, where things lie.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlxcel_core::{ErrorKind, GenerateExt, GenerateOptions, Precision, SessionOptions};
use mlxcel_graph::{Executor, Numerics, Outputs, ProgramShape, StepInputs, state_layouts};

use super::*;
use crate::compiler::Compiler;
use crate::profile::{DispatchProfile, Phase, Profile};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama")
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact)
}

/// A compiler that writes a line into a file whenever it is started.
fn counted_compiler(folder: &Path) -> (PathBuf, PathBuf) {
    let real = Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`");
    let (script, log) = (folder.join("iree-compile"), folder.join("started"));
    let text =
        format!("#!/bin/sh\necho started >> '{}'\nexec '{}' \"$@\"\n", log.display(), real.path().display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    // What a compiler is gets noted once its files have not changed for a while.
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    fs::File::options().append(true).open(&script).unwrap().set_modified(past).unwrap();
    (script, log)
}

fn generate(engine: &IreeBackend) -> Vec<u32> {
    let model = engine.load(&fixture().into(), &options()).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    session.generate_greedy(&[12, 7, 3], &GenerateOptions::new(4)).unwrap().tokens
}

#[test]
fn a_warm_start_does_not_start_the_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let (compiler, log) = counted_compiler(folder.path());
    let engine = IreeBackend::new().with_compiler(compiler).with_cache_dir(folder.path().join("cache"));
    let cold = generate(&engine);
    let started = fs::read_to_string(&log).unwrap();
    assert!(started.lines().count() >= 2, "it was started for each program");
    assert_eq!(generate(&engine), cold);
    assert_eq!(fs::read_to_string(&log).unwrap(), started);
}

#[test]
fn caches_are_updated_in_place() {
    let cache = tempfile::tempdir().unwrap();
    let checkpoint = Arc::new(Checkpoint::open(fixture()).unwrap());
    let decoder = checkpoint.decoder().unwrap();
    let numerics = Numerics::new(Precision::Exact, &decoder).unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let artifacts = Artifacts::new(None, Cache::open(Some(cache.path())).unwrap());
    let layouts = state_layouts(&decoder, numerics, 64).unwrap();
    let layout = layouts[0].clone();
    let writer = ProgramWriter { decoder: decoder.clone(), numerics, layouts };
    let shape = ProgramShape { rows: vec![1, 1], length: 256, outputs: Outputs::Last };
    let read = weights_in_panels(&writer.program(&shape).unwrap().module);
    let compiler = ProgramCompiler::new(writer, crate::backend::host(), artifacts).unwrap();
    let source = ProgramSource::Compiler(Box::new(compiler));
    let lanes = source.lanes().unwrap();
    let programs = Programs::new(device.clone(), source, None);
    let weights = weights::on_device(&device, &checkpoint, &decoder, lanes, &read, &options()).unwrap();
    let vocabulary = decoder.vocabulary_size;
    let executor = IreeExecutor::new(device, programs, weights, vocabulary);

    executor.prepare(&shape, None).unwrap();
    let mut first = [executor.allocate(&layout, 256).unwrap()];
    let mut second = [executor.allocate(&layout, 256).unwrap()];
    let (before_first, before_second) = (first[0].buffer().clone(), second[0].buffer().clone());
    let table = vec![0.5f32; 2 * 8];
    let inputs = StepInputs {
        tokens: vec![5, 6],
        positions: vec![0, 9],
        last: vec![0, 1],
        rotary: vec![(table.clone(), table)],
    };
    let outputs = executor.run(&shape, &inputs, &mut [&mut first, &mut second], &[1]).unwrap();
    assert_eq!((outputs.best.len(), outputs.logits.len(), outputs.logits[0].len()), (2, 1, vocabulary));
    assert!(first[0].buffer().shares_storage_with(&before_first));
    assert!(second[0].buffer().shares_storage_with(&before_second));
    // The second row stands at position 9 and wrote nothing else.
    let written = executor.read(&layout, &second[0], 256, 11).unwrap();
    let row = 16 * 4;
    let is_zero = |position: usize| written[position * row..][..row].iter().all(|&byte| byte == 0);
    assert_eq!((0..11).map(is_zero).collect::<Vec<_>>(), [[true; 9].as_slice(), &[false, true]].concat());
}

#[test]
fn options_that_the_engine_cannot_honour_are_errors_that_name_them() {
    let engine = IreeBackend::new();
    let refused = |options: &LoadOptions| engine.load(&fixture().into(), options).map(drop).unwrap_err();
    let error = refused(&options().with_device("tpu"));
    assert_eq!((error.kind(), error.context("device")), (ErrorKind::InvalidInput, Some("tpu")));
    let error = refused(&options().with_threads(0));
    assert_eq!((error.kind(), error.context("threads")), (ErrorKind::InvalidInput, Some("0")));
    let error = refused(&options().with_capacity(513));
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("capacity")));
    let error = refused(&options().with_sequences(0));
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("sequences")));
}

#[test]
fn a_profiler_tells_prefill_from_decoding() {
    let cache = tempfile::tempdir().unwrap();
    let profiler = Profiler::new();
    for device in ["local-task", "local-sync"] {
        let engine = IreeBackend::new().with_cache_dir(cache.path()).with_profiler(&profiler);
        let model = engine.load(&fixture().into(), &options().with_device(device)).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        session.generate_greedy(&[12, 7, 3], &GenerateOptions::new(4)).unwrap();
        let profile = profiler.take();
        let phases: Vec<_> = profile.programs.iter().map(|one| (one.phase, one.passes)).collect();
        assert!(phases.contains(&(Phase::Prefill, 1)) && phases.contains(&(Phase::Decode, 3)), "{profile}");
        for program in &profile.programs {
            let calls: u64 = program.dispatches.iter().map(|one| one.calls).sum();
            assert!(calls >= program.passes && calls.is_multiple_of(program.passes), "{profile}");
            assert!(program.wall > program.time && program.time > Duration::ZERO, "{profile}");
            assert!(program.dispatches.is_sorted_by_key(|one| std::cmp::Reverse(one.time)));
            assert!(program.dispatches.iter().all(|one| one.name != "unnamed" && !one.busy.is_zero()));
            // Kernels of ours stand beside the compiler's.
            let ours = |one: &DispatchProfile| !one.name.starts_with("step_dispatch");
            assert!(program.dispatches.iter().any(ours) || program.phase != Phase::Decode, "{profile}");
        }
        assert_eq!(profile.lost, 0);
        assert_eq!(profiler.take(), Profile::default());
    }
}

#[test]
fn a_cancelled_load_says_so() {
    let cancel = mlxcel_core::CancelToken::new();
    cancel.cancel();
    let cache = tempfile::tempdir().unwrap();
    let engine = IreeBackend::new().with_cache_dir(cache.path());
    let error = engine.load(&fixture().into(), &options().with_cancel(cancel)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
