//! The engine from a checkpoint folder on: what it starts, what it keeps, where things lie.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_core::{
    Backend, Capabilities, Control, ErrorKind, FaultPoint, Faults, GenerateExt, GenerateOptions, LoadOptions,
    Model, Precision, Row, SamplingParams, SamplingPlan, SessionOptions, StepOutput,
};
use mlxcel_graph::{Executor, Numerics, Outputs, ProgramShape, ProgramWriter, StepInputs, state_layouts};
use mlxcel_iree_compile::cache::Cache;
use mlxcel_iree_compile::{Artifacts, ProgramCompiler};
use mlxcel_iree_runtime::{Device, DeviceOptions};
use mlxcel_models::Checkpoint;

use super::*;
use crate::backend::IreeBackend;
use crate::compile::Compiled;
use crate::profile::{DispatchProfile, Phase, Profile, Profiler};
use crate::testing::{cache_dir, write_compiler};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama")
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact)
}

/// A compiler that writes a line into a file whenever it is started.
fn counted_compiler(folder: &Path) -> (PathBuf, PathBuf) {
    let real = crate::testing::compiler();
    let (script, log) = (folder.join("iree-compile"), folder.join("started"));
    let text =
        format!("#!/bin/sh\necho started >> '{}'\nexec '{}' \"$@\"\n", log.display(), real.path().display());
    write_compiler(&script, &text);
    (script, log)
}

fn generate(engine: &IreeBackend, options: &LoadOptions) -> Vec<u32> {
    let model = engine.load(&fixture().into(), options).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    session.generate_greedy(&[12, 7, 3], &GenerateOptions::new(4)).unwrap().tokens
}

#[test]
fn a_warm_start_does_not_start_the_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let (compiler, log) = counted_compiler(folder.path());
    let engine = IreeBackend::new().with_compiler(compiler).with_cache_dir(folder.path().join("cache"));
    // Too short for a program that is compiled in the background, and no longer once its model is dropped.
    let options = options().with_capacity(16);
    let cold = generate(&engine, &options);
    let started = fs::read_to_string(&log).unwrap();
    assert!(started.lines().count() >= 2, "it was started for each program");
    assert_eq!(generate(&engine, &options), cold);
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
    let writer = ProgramWriter::with_layouts(decoder.clone(), numerics, layouts).unwrap();
    let shape = ProgramShape { rows: vec![1, 1], length: 256, outputs: Outputs::Last };
    let compiler = ProgramCompiler::new(writer.clone(), crate::testing::host(), artifacts).unwrap();
    let source = Box::new(Compiled(compiler));
    let programs = Programs::new(device.clone(), source, writer, None);
    let layouts = programs.layouts().unwrap();
    let weights = weights::on_device(&device, &checkpoint, programs.weights(), &layouts, &options()).unwrap();
    let vocabulary = decoder.vocabulary_size;
    let executor = IreeExecutor::new(device, programs, weights).unwrap();

    let program = executor.prepare(&shape, None).unwrap().program;
    let mut first = [executor.allocate(&layout, 256).unwrap()];
    let mut second = [executor.allocate(&layout, 256).unwrap()];
    let (before_first, before_second) = (first[0].buffer().clone(), second[0].buffer().clone());
    let table = vec![0.5f32; 2 * 8];
    let inputs = StepInputs {
        tokens: vec![5, 6],
        positions: vec![0, 9],
        last: vec![0, 1],
        rotary: vec![(table.clone(), table)],
        ..StepInputs::default()
    };
    let outputs = executor.run(&program, &inputs, &mut [&mut first, &mut second], &[1]).unwrap();
    assert_eq!((outputs.best.len(), outputs.values.len(), outputs.values[0].len()), (2, 1, vocabulary));
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
fn a_profile_separates_prefill_from_decode() {
    let profiler = Profiler::new();
    for device in ["local-task", "local-sync"] {
        let engine = IreeBackend::new().with_cache_dir(cache_dir()).with_profiler(&profiler);
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
fn a_cancelled_load_is_an_error() {
    let cancel = mlxcel_core::CancelToken::new();
    cancel.cancel();
    let cache = tempfile::tempdir().unwrap();
    let engine = IreeBackend::new().with_cache_dir(cache.path());
    let error = engine.load(&fixture().into(), &options().with_cancel(cancel)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

/// Texts of two sessions on `device`, and how long they take one after the other and on a thread each.
fn two_texts(model: &dyn Model, tokens: usize) -> [(Vec<Vec<u32>>, Duration); 2] {
    let text = |first: u32| {
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        session.generate_greedy(&[first, 7, 3], &GenerateOptions::new(tokens)).unwrap().tokens
    };
    let started = Instant::now();
    let one_by_one = vec![text(12), text(13)];
    let first = started.elapsed();
    let started = Instant::now();
    let at_once = std::thread::scope(|scope| {
        let threads = [12, 13].map(|first| scope.spawn(move || text(first)));
        threads.map(|thread| thread.join().unwrap()).to_vec()
    });
    [(one_by_one, first), (at_once, started.elapsed())]
}

#[test]
fn sessions_on_different_threads_match_single_sequence_runs() {
    let engine = IreeBackend::new().with_cache_dir(cache_dir());
    for device in ["local-sync", "local-task"] {
        let model = engine.load(&fixture().into(), &options().with_device(device)).unwrap();
        let [(one_by_one, _), (at_once, _)] = two_texts(&*model, 60);
        assert_eq!(one_by_one, at_once, "{device}");
    }
}

#[test]
#[ignore = "measures: MLXCEL_TEST_CHECKPOINT names a checkpoint, cargo test --release -p mlxcel-iree --lib two_sessions -- --ignored --nocapture"]
fn two_sessions_on_two_threads_beside_one_after_the_other() {
    let folder = PathBuf::from(std::env::var_os("MLXCEL_TEST_CHECKPOINT").expect("no checkpoint is named"));
    for (device, threads) in [("local-sync", 1), ("local-task", 1), ("local-task", 2)] {
        let options = LoadOptions::default().with_capacity(512).with_device(device).with_threads(threads);
        let model = IreeBackend::new().load(&folder.as_path().into(), &options).unwrap();
        two_texts(&*model, 4);
        for _ in 0..5 {
            let [(_, one_by_one), (_, at_once)] = two_texts(&*model, 64);
            let times = one_by_one.as_secs_f64() / at_once.as_secs_f64();
            println!(
                "{device} {threads}: {one_by_one:.3?} one after the other, {at_once:.3?} at once: {times:.2}x"
            );
        }
    }
}

#[test]
#[ignore = "measures: MLXCEL_TEST_CHECKPOINT names a checkpoint, cargo test --release -p mlxcel-iree --lib decoding_rows -- --ignored --nocapture"]
fn decoding_rows_of_one_step_beside_one() {
    let folder = PathBuf::from(std::env::var_os("MLXCEL_TEST_CHECKPOINT").expect("no checkpoint is named"));
    const ROWS: [usize; 5] = [1, 2, 4, 8, 16];
    let plan = SamplingPlan::negotiate(&SamplingParams::default(), &Capabilities::new(1, 1)).unwrap();
    let options = LoadOptions::default().with_capacity(512).with_sequences(16);
    for profiled in [false, true] {
        let profiler = Profiler::new();
        let mut engine = IreeBackend::new();
        if profiled {
            engine = engine.with_profiler(&profiler);
        }
        let model = engine.load(&folder.as_path().into(), &options).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let sequences: Vec<_> = (0..16).map(|_| session.open().unwrap()).collect();
        let mut out = StepOutput::default();
        let prompts: Vec<_> = sequences.iter().map(|&sequence| Row::extend(sequence, &[5; 32])).collect();
        session.step(&prompts, &Default::default(), &mut out).unwrap();
        let mut step = |rows: usize| {
            let rows: Vec<_> =
                sequences[..rows].iter().map(|&sequence| Row::next(sequence, &[7], &plan)).collect();
            let started = Instant::now();
            session.step(&rows, &Default::default(), &mut out).unwrap();
            started.elapsed().as_secs_f64() * 1e3
        };
        for rows in ROWS {
            step(rows);
        }
        profiler.take();
        let mut times = ROWS.map(|_| Vec::new());
        for _ in 0..8 {
            for (rows, times) in ROWS.iter().zip(&mut times) {
                times.extend([(); 4].map(|()| step(*rows)));
            }
        }
        times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        for (rows, found) in ROWS.iter().zip(&times) {
            let (least, median) = (found[0], found[found.len() / 2]);
            let gain = |at: usize| *rows as f64 * times[0][at] / found[at];
            println!(
                "{rows:2} rows: {least:6.1} ms at least, {median:6.1} median; {:.1} token/s, {:.2}x ({:.2}x of medians)",
                *rows as f64 * 1e3 / least,
                gain(0),
                gain(found.len() / 2)
            );
        }
        if profiled {
            println!("{}", profiler.take());
        }
    }
}

#[test]
fn a_failed_argument_allocation_leaves_the_sequence_unchanged() {
    let greedy = SamplingPlan::greedy();
    let mut struck = 0;
    // Wherever the first two of a step's allocations are among those of loading.
    for good in 0..400 {
        let faults = Faults::new(FaultPoint::Allocation, good);
        let engine = IreeBackend::new().with_cache_dir(cache_dir()).with_faults(faults.clone());
        let Ok(model) = engine.load(&fixture().into(), &options()) else { continue };
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let sequence = session.open().unwrap();
        let control = Control::default();
        let mut feed = || {
            let mut out = StepOutput::default();
            session.step(&[Row::next(sequence, &[12, 7, 3], &greedy)], &control, &mut out).unwrap();
            out.take().remove(0)
        };
        let Err(error) = feed() else {
            assert!(!faults.has_struck(), "an allocation failed and nobody noticed");
            break;
        };
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
        struck += u32::from(error.operation() == "pass an argument");
        feed().unwrap();
        assert_eq!(session.state(sequence).unwrap().position, 3, "{error}");
        assert!(!session.state(sequence).unwrap().poisoned, "{error}");
    }
    assert_eq!(struck, 1);
}
