//! Tests with a plugin: updates in place, sharding, and errors.

use std::sync::Arc;

use mlxcel_core::{
    Backend, Control, Error, ErrorKind, GenerateExt, GenerateOptions, InferenceSession, InferenceSessionExt,
    LoadOptions, Model, Precision, Row, SamplingPlan, SessionOptions,
};
use mlxcel_graph::{Executor, GraphModelOptions, Outputs, ProgramShape, ProgramWriter, StepInputs};
use mlxcel_models::Checkpoint;

use super::*;
use crate::ffi::Plugin;
use crate::ffi::failing::{self, Point};
use crate::profile::Profiler;
use crate::sharding::Sharding;
use crate::testing::{engine, fixture, source};
use crate::{Collective, Inspection, PjrtBackend};

fn exact() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact)
}

fn tokens(engine: &PjrtBackend, name: &str) -> Vec<u32> {
    let model = engine.load(&source(name), &exact()).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    session.generate_greedy(&[12, 7, 3, 40, 41, 9], &GenerateOptions::new(12)).unwrap().tokens
}

/// An executor of a fixture on this many devices, and its program for one decoding row.
fn executor(engine: &PjrtBackend, name: &str, devices: usize) -> (PjrtExecutor, ProgramWriter, ProgramShape) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let programs = engine.clone().with_mesh(devices).open(&source(name), &exact()).unwrap().programs;
    let weights = on_devices(&programs, &checkpoint, &decoder, &exact()).unwrap();
    let writer = ProgramWriter::new(decoder, &GraphModelOptions::from(&exact())).unwrap();
    let shape = ProgramShape { rows: vec![1], length: 256, outputs: Outputs::Last };
    (PjrtExecutor::new(programs, weights, None).unwrap(), writer, shape)
}

fn inputs(writer: &ProgramWriter, position: i32) -> StepInputs {
    let tables = writer.decoder.ropes().into_iter().map(|rope| {
        let width = rope.rotary_dim / 2;
        (vec![1.0; width], vec![0.0; width])
    });
    let rotary = tables.collect();
    StepInputs { tokens: vec![3], positions: vec![position], last: vec![0], rotary, ..StepInputs::default() }
}

#[test]
fn caches_are_updated_in_place() {
    let Some(engine) = engine() else { return };
    for devices in [1, 2] {
        let (executor, writer, shape) = executor(&engine, "architectures/llama", devices);
        let program = executor.prepare(&shape, None).unwrap().program;
        let allocate = |layout| executor.allocate(layout, shape.length).unwrap();
        let mut states: Vec<_> = writer.layouts.iter().map(allocate).collect();
        let addresses = |states: &[super::states::PjrtState]| -> Vec<usize> {
            states.iter().flat_map(|state| &state.shards).map(|shard| shard.address().unwrap()).collect()
        };
        let before = addresses(&states);
        assert_eq!(before.len(), devices);
        for position in 0..3 {
            executor
                .run(&program, &inputs(&writer, position), &mut [&mut states], &[])
                .map_err(|_| ())
                .unwrap();
            assert_eq!(addresses(&states), before, "{devices} devices, position {position}");
        }
        // A donated cache is gone, and its update is there.
        let written = executor.read(&writer.layouts[0], &states[0], shape.length, 3).unwrap();
        assert!(written.chunks_exact(4).filter(|bytes| **bytes != [0; 4]).count() > written.len() / 8);
    }
}

#[test]
fn snapshots_round_trip_for_every_length_and_number_of_devices() {
    let Some(engine) = engine() else { return };
    for devices in [1, 2] {
        let (executor, writer, _) = executor(&engine, "architectures/llama", devices);
        let layout = &writer.layouts[0];
        let bytes: Vec<u8> = (0..layout.bytes(70)).map(|index| (index % 251) as u8).collect();
        let mut short = executor.allocate(layout, 128).unwrap();
        executor.write(layout, &mut short, 128, 70, &bytes).unwrap();
        let mut long = executor.allocate(layout, 256).unwrap();
        executor.copy(layout, (&short, 128), (&mut long, 256), 70).unwrap();
        let mut back = executor.allocate(layout, 128).unwrap();
        executor.copy(layout, (&long, 256), (&mut back, 128), 70).unwrap();
        for (state, length) in [(&short, 128), (&long, 256), (&back, 128)] {
            assert!(
                executor.read(layout, state, length, 70).unwrap() == bytes,
                "{devices} devices, {length}"
            );
        }
        assert_eq!(back.sharding, if devices == 2 { Sharding::Split(2) } else { Sharding::Replicated });
    }
}

/// Whether meshes of these devices say what one device says.
fn hold_meshes(name: &str, meshes: &[usize]) {
    let Some(engine) = engine() else { return };
    let one = tokens(&engine, name);
    for &devices in meshes {
        assert_eq!(tokens(&engine.clone().with_mesh(devices), name), one, "{name} on {devices} devices");
    }
}

#[test]
fn meshes_generate_the_same_tokens_as_one_device() {
    hold_meshes("architectures/llama", &[2]);
    // One key/value head.
    hold_meshes("architectures/gemma", &[2]);
    // Packed, and 6 heads that 4 devices cannot share.
    hold_meshes("storyteller-4bit", &[4]);
}

#[test]
fn indivisible_heads_are_replicated_and_reported() {
    let Some(engine) = engine() else { return };
    let replicated = |name: &str, devices: usize| {
        let found = engine.clone().with_mesh(devices).inspect(&source(name), &exact()).unwrap();
        let told = found.to_string();
        assert!(
            found
                .replicated
                .iter()
                .all(|(name, bytes)| told.contains(&format!("{name}: replicated, {bytes}")))
        );
        let names: Vec<String> = found.replicated.into_iter().map(|(name, _)| name).collect();
        ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"]
            .map(|part| names.iter().any(|name| name.contains(part)))
    };
    assert_eq!(replicated("architectures/llama", 2), [false; 5]);
    // Four heads over one key/value head, and six over two.
    assert_eq!(replicated("architectures/gemma", 2), [false, true, true, false, false]);
    assert_eq!(replicated("storyteller-4bit", 4), [true, true, true, true, false]);
}

#[test]
fn a_profile_has_time_and_bytes_of_each_pass() {
    let Some(engine) = engine() else { return };
    let profiler = Profiler::new();
    tokens(&engine.with_mesh(2).with_profiler(&profiler), "architectures/llama");
    let profile = profiler.take();
    let decode = profile.programs.iter().find(|program| program.program == "1@256").unwrap();
    assert_eq!(decode.passes, 11);
    assert!(!decode.time.is_zero() && decode.collectives.iter().any(|one| one.operation == "all-reduce"));
    assert!(profile.to_string().contains("all-reduce of"), "{profile}");
    assert!(profiler.take().programs.is_empty());
}

#[test]
fn a_plugin_failure_poisons_only_the_sequences_of_its_pass() {
    let Some(engine) = engine() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("failing.so");
    std::fs::write(&path, "").unwrap();
    failing::register(&Plugin::load(&engine.plugin_path().unwrap()).unwrap(), &path);
    let engine = engine.with_plugin(path).without_cache();
    let load = || engine.load(&source("architectures/llama"), &exact().with_capacity(100));
    let told = |error: &Error| format!("{error:?}").contains("the test's device is gone");

    for (point, kind) in [(Point::Upload, ErrorKind::Device), (Point::Compile, ErrorKind::Compile)] {
        failing::fail_next(point);
        let error = load().err().unwrap();
        assert!(error.kind() == kind && told(&error), "{point:?}: {error:?}");
    }
    let model = load().unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let (plan, control) = (SamplingPlan::greedy(), Control::default());
    let prefilled = |session: &mut Box<dyn InferenceSession>| {
        let sequence = session.open().unwrap();
        let row = session.run_row(Row::next(sequence, &[12, 7, 3], &plan), &control).unwrap();
        let token = row.into_token().unwrap();
        (sequence, token.token)
    };
    let (other, first) = prefilled(&mut session);
    let step = |session: &mut Box<dyn InferenceSession>, sequence, token| {
        session
            .decode_step(&[(sequence, token)], &plan, &control)
            .and_then(|rows| rows.into_iter().next().unwrap())
    };
    let expected = step(&mut session, other, first).unwrap().token;
    for (point, is_harmed) in [
        // Before the program has taken the caches over, and when their state is unknown.
        (Point::Upload, false),
        (Point::Await, false),
        (Point::Execute, false),
        (Point::ReadBack, true),
    ] {
        let (sequence, token) = prefilled(&mut session);
        assert_eq!(token, first);
        failing::fail_next(point);
        let error = step(&mut session, sequence, token).unwrap_err();
        assert!(
            failing::has_failed() && error.kind() == ErrorKind::Device && told(&error),
            "{point:?}: {error:?}"
        );
        let again = step(&mut session, sequence, token);
        match again {
            Ok(token) => assert!(!is_harmed && token.token == expected, "{point:?}"),
            Err(error) => assert!(is_harmed && error.kind() == ErrorKind::Poisoned, "{point:?}: {error:?}"),
        }
        session.close(sequence).unwrap();
    }
    // Others go on.
    assert!(step(&mut session, other, expected).is_ok());
}

#[test]
fn each_layer_has_two_all_reduces_and_moves_no_weight() {
    let Some(engine) = engine() else { return };
    let checkpoint = Checkpoint::open(fixture("architectures/llama")).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let found: Inspection = engine.with_mesh(2).inspect(&source("architectures/llama"), &exact()).unwrap();
    assert!(found.weight_bytes_per_device as f64 <= 0.55 * found.weight_bytes as f64, "{found}");
    for (name, collectives) in &found.programs {
        let tokens: usize = name.split('@').next().unwrap().parse().unwrap();
        // Of a chunk, the last layer is wanted for the last token alone.
        let streams = [tokens, 1].map(|tokens| (tokens * decoder.hidden_size * 4) as u64);
        let is_sum = |one: &&Collective| one.operation == "all-reduce" && streams.contains(&one.bytes);
        // Those of the layers, and that of the embeddings' rows.
        let sums = collectives.iter().filter(is_sum).count();
        assert_eq!(sums, 2 * decoder.layers.len() + 1, "{name}: {found}");
        let least =
            decoder.weights().filter(|weight| weight.shape.len() == 2).map(|weight| weight.byte_len()).min();
        for other in collectives.iter().filter(|one| !is_sum(one)) {
            assert!(other.bytes < least.unwrap() as u64, "{name}: {other:?}");
        }
    }
}

#[test]
fn a_library_that_is_not_a_plugin_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    let load = |path: &std::path::Path| {
        let engine = PjrtBackend::new().with_plugin(path);
        engine.load(&source("architectures/llama"), &exact()).err().unwrap()
    };
    let missing = load(&folder.path().join("missing.so"));
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let error = load(&text);
    assert_eq!(error.kind(), ErrorKind::Toolchain);
    assert!(error.context("path").is_some_and(|path| path.ends_with("text.so")), "{error}");
    // A library that is not a plugin.
    #[cfg(target_os = "linux")]
    if let Some(library) =
        ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"]
            .into_iter()
            .map(std::path::Path::new)
            .find(|path| path.is_file())
    {
        let error = load(library);
        assert_eq!(error.kind(), ErrorKind::Toolchain);
        assert!(error.message().contains("GetPjrtApi"), "{error}");
    }
}

#[test]
fn unsupported_options_are_rejected_by_name() {
    let Some(engine) = engine() else { return };
    let load = |engine: &PjrtBackend, options: &LoadOptions| {
        engine
            .load(&source("architectures/llama"), options)
            .map(|model: Arc<dyn Model>| drop(model))
            .unwrap_err()
    };
    let error = load(&engine, &exact().with_device("gpu"));
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("device")));
    let error = load(&engine.clone().with_mesh(1000), &exact());
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("mesh")));
    let error = load(&engine, &exact().with_threads(2));
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("threads")));
    // The plugin's own words are kept.
    let error = load(&engine.with_compile_option("xla_no_such_option", 3).without_cache(), &exact());
    assert_eq!(error.kind(), ErrorKind::Compile);
    assert!(format!("{error:?}").contains("xla_no_such_option"), "{error:?}");
}

/// Every program takes XLA seconds.
mod nightly {
    use super::*;

    #[test]
    fn larger_meshes_and_networks_generate_the_same_tokens_as_one_device() {
        for name in ["architectures/qwen3_moe", "architectures/deepseek_v3", "architectures/llama"] {
            hold_meshes(name, &[2, 4]);
        }
    }

    #[test]
    fn expanded_weights_generate_the_same_tokens() {
        let Some(engine) = engine() else { return };
        for name in ["storyteller-4bit", "architectures/qwen3_moe"] {
            let one = tokens(&engine, name);
            for devices in [1, 2] {
                let expanded = engine.clone().with_expanded_weights(true).with_mesh(devices);
                assert_eq!(tokens(&expanded, name), one, "{name} on {devices} devices");
            }
        }
    }
}
