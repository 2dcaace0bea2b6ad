//! Where a plugin is at hand: what is updated in place, what is spread, and what goes wrong.

use std::sync::Arc;

use mlxcel_core::{
    Backend, ErrorKind, GenerateExt, GenerateOptions, LoadOptions, Model, Precision, SessionOptions,
};
use mlxcel_graph::{Executor, GraphModelOptions, Outputs, ProgramShape, ProgramWriter, StepInputs};
use mlxcel_models::Checkpoint;

use super::*;
use crate::parallel::weight_shardings;
use crate::sharding::Sharding;
use crate::store::Store;
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

/// An executor of a fixture on so many devices, and its program for one decoding row.
fn executor(engine: &PjrtBackend, name: &str, devices: usize) -> (PjrtExecutor, ProgramWriter, ProgramShape) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let mesh = engine.clone().with_mesh(devices).devices(&exact()).unwrap();
    let store = Store::open(engine.cache_dir(), false, mesh.client()).unwrap();
    let writer = ProgramWriter::new(decoder.clone(), &GraphModelOptions::from(&exact())).unwrap();
    let shardings = weight_shardings(&decoder, &writer.weights, devices);
    let weights = on_devices(&mesh, &checkpoint, &writer.weights, &shardings, &exact()).unwrap();
    let programs = Programs::new(mesh, writer.clone(), shardings, Precision::Exact, store, None);
    let shape = ProgramShape { rows: vec![1], length: 256, outputs: Outputs::Last };
    (PjrtExecutor::new(programs, weights), writer, shape)
}

fn inputs(writer: &ProgramWriter, position: i32) -> StepInputs {
    let tables = writer.decoder.ropes().into_iter().map(|rope| {
        let width = rope.rotary_dim / 2;
        (vec![1.0; width], vec![0.0; width])
    });
    StepInputs { tokens: vec![3], positions: vec![position], last: vec![0], rotary: tables.collect() }
}

#[test]
fn caches_are_updated_where_they_lie() {
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
        // A cache that went into a program is not there any more, and what was written is.
        let written = executor.read(&writer.layouts[0], &states[0], shape.length, 3).unwrap();
        assert!(written.chunks_exact(4).filter(|bytes| **bytes != [0; 4]).count() > written.len() / 8);
    }
}

#[test]
fn a_state_comes_back_from_every_length_and_number_of_devices_as_it_was() {
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

#[test]
fn meshes_say_the_same_as_one_device() {
    let Some(engine) = engine() else { return };
    for name in
        ["architectures/llama", "storyteller-4bit", "architectures/qwen3_moe", "architectures/deepseek_v3"]
    {
        let one = tokens(&engine, name);
        for devices in [2, 4] {
            assert_eq!(tokens(&engine.clone().with_mesh(devices), name), one, "{name} on {devices} devices");
        }
    }
}

#[test]
fn a_layer_is_added_up_twice_and_no_weight_moves() {
    let Some(engine) = engine() else { return };
    let checkpoint = Checkpoint::open(fixture("architectures/llama")).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let found: Inspection = engine.with_mesh(2).inspect(&source("architectures/llama"), &exact()).unwrap();
    assert!(found.weight_bytes_per_device as f64 <= 0.55 * found.weight_bytes as f64, "{found}");
    for ((name, collectives), tokens) in found.programs.iter().zip([64, 1]) {
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
fn what_is_no_plugin_is_told_and_harms_nothing() {
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
    // A library that is no plugin.
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
fn options_that_cannot_be_followed_are_refused_by_name() {
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
