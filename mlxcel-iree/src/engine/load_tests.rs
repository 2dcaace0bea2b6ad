//! Loading as a whole: what it does where memory is short, and how long it takes beside a copy.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{Backend, ErrorKind, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
use mlxcel_graph::{WeightArgument, weight_arguments};
use mlxcel_iree_compile::cache::Cache;
use mlxcel_iree_kernels::layout::TensorRole;
use mlxcel_iree_kernels::{Layouts, Panels};
use mlxcel_iree_runtime::{ALIGNMENT, Device, DeviceOptions, HostMemory};
use mlxcel_models::Checkpoint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::weights;
use crate::backend::IreeBackend;
use crate::bundle::{self, BundleOptions};

/// Says to a test that it runs in a process of its own.
const CHILD: &str = "MLXCEL_TEST_CHILD";

/// The folder of a real checkpoint, for the tests that take gigabytes.
const CHECKPOINT: &str = "MLXCEL_TEST_CHECKPOINT";

/// Writes the fixture with a vocabulary so large that its weights take more than `bytes`, without filling the
/// disk.
fn write_huge_checkpoint(folder: &Path, bytes: usize) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    let file = fs::read(fixture.join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    let mut header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let config = fs::read(fixture.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let hidden = config["hidden_size"].as_u64().unwrap() as usize;
    let vocabulary = bytes / (2 * hidden) + 1;
    let old = config["vocab_size"].take();
    config["vocab_size"] = vocabulary.into();
    header.remove("__metadata__");
    let mut end = 0;
    for entry in header.values_mut() {
        if entry["shape"][0] == old {
            entry["shape"][0] = vocabulary.into();
        }
        assert_eq!(entry["dtype"], "BF16");
        let sizes = entry["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap());
        let begin = end;
        end += 2 * sizes.product::<u64>();
        entry["data_offsets"] = serde_json::json!([begin, end]);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    // So that the first tensor, the large one, lies aligned.
    header.resize((8 + header.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header].concat()).unwrap();
    let sparse = fs::File::options().write(true).open(path).unwrap();
    sparse.set_len(8 + header.len() as u64 + end).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn weights_larger_than_memory_are_an_error() {
    const LIMIT: usize = 512 << 20;
    let name = "engine::load_tests::weights_larger_than_memory_are_an_error";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        assert!(child.status().unwrap().success());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_huge_checkpoint(folder.path(), 2 * LIMIT);
    let checkpoint = Arc::new(Checkpoint::open(folder.path()).unwrap());
    let decoder = checkpoint.decoder().unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    // Of memory that the process has to itself; what is mapped from a file does not count.
    let limit = Rlimit { current: Some(LIMIT as u64), ..getrlimit(Resource::Data) };
    setrlimit(Resource::Data, limit).unwrap();
    let arguments = weight_arguments(&decoder).unwrap();
    let load = |layouts: &Layouts| {
        weights::on_device(&device, &checkpoint, &arguments, layouts, &LoadOptions::default()).map(drop)
    };
    let in_panels = |argument: &WeightArgument| {
        (argument.name.clone(), Some(Panels { lanes: 16, contents: TensorRole::Dense(argument.ty.element) }))
    };
    let error = load(&arguments.iter().map(in_panels).collect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert!(error.context("bytes").is_some(), "{error}");
    load(&Layouts::default()).unwrap();
}

/// The bytes of memory that no file stands behind, as the system sums up this process's mappings.
#[cfg(target_os = "linux")]
fn anonymous_bytes() -> u64 {
    let mappings = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = mappings.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn weights_of_bundles_and_in_the_cache_are_mapped_not_copied() {
    const BYTES: u64 = 128 << 20;
    let name = "engine::load_tests::weights_of_bundles_and_in_the_cache_are_mapped_not_copied";
    let options = LoadOptions::default().with_threads(2).with_capacity(100);
    if let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) {
        let bundle = folder.join("bundle");
        let trusting = IreeBackend::new().with_trusted_bundle(&bundle);
        let caching = IreeBackend::new().with_cache_dir(folder.join("cache"));
        // The weights are put into the cache, and are there.
        for (engine, model) in [(&trusting, "bundle"), (&caching, "checkpoint"), (&caching, "checkpoint")] {
            let before = anonymous_bytes();
            let model = engine.load(&folder.join(model).into(), &options).unwrap();
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(2)).unwrap();
            let taken = anonymous_bytes().saturating_sub(before);
            assert!(model.info().weight_bytes > BYTES && taken < BYTES / 4, "{taken} bytes");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, bundle) = (folder.path().join("checkpoint"), folder.path().join("bundle"));
    fs::create_dir(&checkpoint).unwrap();
    write_huge_checkpoint(&checkpoint, BYTES as usize);
    let engine = IreeBackend::new().with_cache_dir(folder.path().join("cache"));
    let written = BundleOptions::from(LoadOptions::default().with_capacity(100));
    let manifest = bundle::write(&engine, &checkpoint.as_path().into(), &bundle, &written).unwrap();
    assert!(manifest.targets[0].laid_out.is_some(), "there are kernels for this processor");
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, folder.path());
    assert!(child.status().unwrap().success());
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "measures: MLXCEL_TEST_CHECKPOINT names a folder of gigabytes"]
fn a_bundle_yields_its_first_token_quickly() {
    let checkpoint = PathBuf::from(std::env::var_os(CHECKPOINT).expect("MLXCEL_TEST_CHECKPOINT is not set"));
    let folder = tempfile::tempdir().unwrap();
    let (engine, options) = (IreeBackend::new(), LoadOptions::default());
    for laid_out in [false, true] {
        let bundle = folder.path().join(laid_out.to_string());
        let written =
            BundleOptions::from(options.clone().with_capacity(1000)).with_laid_out_weights(laid_out);
        bundle::write(&engine, &checkpoint.as_path().into(), &bundle, &written).unwrap();
        let mut times = Vec::new();
        for _ in 0..5 {
            let (started, before) = (Instant::now(), anonymous_bytes());
            let model = engine.load(&bundle.as_path().into(), &options).unwrap();
            let opened = started.elapsed();
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(1)).unwrap();
            let first = started.elapsed();
            let mut another = model.open_session(&SessionOptions::default()).unwrap();
            another.generate_greedy(&[1, 2, 3], &GenerateOptions::new(1)).unwrap();
            let again = started.elapsed() - first;
            times.push(first);
            let taken = (anonymous_bytes() - before) as f64 / model.info().weight_bytes as f64;
            println!(
                "laid out {laid_out}: open {opened:.3?}, first token {first:.3?}, that of another session {again:.3?}, memory {taken:.3} of the weights"
            );
        }
        times.sort_unstable();
        assert!(!laid_out || times[2] <= Duration::from_millis(300), "the median is {:?}", times[2]);
    }
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "measures: MLXCEL_TEST_CHECKPOINT names a folder of gigabytes"]
fn a_model_that_was_opened_before_opens_quickly() {
    let checkpoint = PathBuf::from(std::env::var_os(CHECKPOINT).expect("MLXCEL_TEST_CHECKPOINT is not set"));
    let keeping = IreeBackend::new().with_kept_weights(1);
    let copying = keeping.clone().with_kept_weights(u64::MAX);
    let cache = Cache::open(None).unwrap();
    let remove = || {
        let entries = cache.entries().unwrap().into_iter();
        let kept = entries.filter(|entry| entry.program.starts_with("weights of "));
        kept.for_each(|entry| cache.remove(&entry).unwrap());
    };
    let mut first_tokens = Vec::new();
    for round in 0..6 {
        remove();
        for (name, engine) in [("copied", &copying), ("opened first", &keeping), ("again", &keeping)] {
            let (started, before) = (Instant::now(), private_bytes());
            let model = engine.load(&checkpoint.as_path().into(), &LoadOptions::default()).unwrap();
            let opened = started.elapsed();
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(1)).unwrap();
            let first = started.elapsed();
            session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(24)).unwrap();
            let text = started.elapsed() - first;
            let taken = private_bytes().saturating_sub(before) as f64 / model.info().weight_bytes as f64;
            println!(
                "{name}: open {opened:.3?}, first token {first:.3?}, 24 tokens {text:.3?}, private {taken:.3} of the weights"
            );
            // In the first round programs are compiled.
            if name == "again" && round > 0 {
                first_tokens.push(first);
            }
        }
    }
    remove();
    first_tokens.sort_unstable();
    assert!(first_tokens[2] <= Duration::from_secs(1), "the median is {:?}", first_tokens[2]);
}

/// The bytes of memory that this process has to itself.
#[cfg(target_os = "linux")]
fn private_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// Copies `source` into fresh memory with `threads` threads, and returns how long that takes.
fn copy(source: &[u8], threads: usize, huge_pages: bool) -> Duration {
    let started = Instant::now();
    let memory = if huge_pages { HostMemory::for_filling } else { HostMemory::zeroed };
    let mut memory = memory(source.len()).unwrap();
    let share = source.len().div_ceil(threads).next_multiple_of(1 << 21);
    thread::scope(|scope| {
        for (target, source) in memory.as_mut_slice().chunks_mut(share).zip(source.chunks(share)) {
            scope.spawn(move || target.copy_from_slice(source));
        }
    });
    started.elapsed()
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "measures: MLXCEL_TEST_CHECKPOINT names a folder of gigabytes"]
fn loading_takes_at_most_one_and_a_half_times_a_copy() {
    let folder = PathBuf::from(std::env::var_os(CHECKPOINT).expect("MLXCEL_TEST_CHECKPOINT is not set"));
    let checkpoint = Arc::new(Checkpoint::open(&folder).unwrap());
    let decoder = checkpoint.decoder().unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let (_, file) = checkpoint.weight_files().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let graph = mlxcel_graph::GraphModelOptions::from(&LoadOptions::default());
    let writer = mlxcel_graph::ProgramWriter::new(decoder.clone(), &graph).unwrap();
    let shape = &graph.first_programs(&decoder).unwrap()[0];
    let target = crate::testing::host();
    let program = writer.program(shape).unwrap();
    let lowered =
        mlxcel_iree_kernels::lower(&program.module, target.hardware().unwrap(), graph.precision).unwrap();
    let engine = IreeBackend::new().with_kept_weights(u64::MAX);
    engine.load(&folder.as_path().into(), &LoadOptions::default()).unwrap();
    let (mut copies, mut opens) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let plain = copy(file, device.threads(), false);
        let huge = copy(file, device.threads(), true);
        let started = Instant::now();
        let (layouts, options) = (&lowered.layouts, LoadOptions::default());
        let packed = weights::on_device(&device, &checkpoint, &writer.weights, layouts, &options).unwrap();
        let packing = started.elapsed();
        drop(packed);
        let before = private_bytes();
        let started = Instant::now();
        let model = engine.load(&folder.as_path().into(), &LoadOptions::default()).unwrap();
        let open = started.elapsed();
        println!(
            "copy {plain:.3?}, into huge pages {huge:.3?}, weights into panels {packing:.3?}, open {open:.3?}, private {:.3} of the weights",
            (private_bytes() - before) as f64 / decoder.weight_bytes() as f64
        );
        drop(model);
        copies.push(plain.min(huge));
        opens.push(open);
    }
    copies.sort_unstable();
    opens.sort_unstable();
    let ratio = opens[2].as_secs_f64() / copies[2].as_secs_f64();
    assert!(ratio <= 1.5, "the median of opening takes {ratio:.2} times that of the faster copy");
}
