//! Caches that outgrow their length, and that one again, under our kernels, in types that are not the
//! default.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_core::{LoadOptions, Model, Precision, SessionOptions};
use mlxcel_graph::{GraphModel, GraphModelOptions, KvCacheType, Lengths, ProgramWriter, model_info};
use mlxcel_iree_compile::cache::Cache;
use mlxcel_iree_compile::{Artifacts, ProgramCompiler};
use mlxcel_iree_kernels::{attends_in_use, for_kernels};
use mlxcel_iree_runtime::{Device, DeviceOptions};
use mlxcel_models::Checkpoint;

use super::state_tests::feed;
use super::{IreeExecutor, Programs, weights};
use crate::compile::Compiled;
use crate::testing::cache_dir;

/// Where caches grow: a chunk of 16 tokens goes into the first as a whole, and the last holds the capacity
/// and a chunk's padding.
const LENGTHS: [usize; 3] = [48, 112, 528];

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama")
}

/// The fixture with caches of these lengths alone, in this type.
fn model(kv_cache: KvCacheType, lengths: &[usize], cache: &Path) -> Arc<dyn Model> {
    let checkpoint = Arc::new(Checkpoint::open(fixture()).unwrap());
    let decoder = checkpoint.decoder().unwrap();
    let options = LoadOptions::default().with_precision(Precision::Exact).with_sequences(2);
    let mut graph = for_kernels(GraphModelOptions::from(&options));
    graph.kv_cache = kv_cache;
    graph.chunks = vec![16];
    graph.lengths = Some(Lengths::from_buckets(lengths).unwrap());
    let target = crate::testing::host();
    assert!(attends_in_use(&decoder, target.hardware().unwrap()), "attention here is no kernel of ours");

    let device = Device::open(&DeviceOptions::default()).unwrap();
    let artifacts = Artifacts::new(None, Cache::open(Some(cache)).unwrap());
    let writer = ProgramWriter::new(decoder.clone(), &graph).unwrap();
    let compiler = ProgramCompiler::new(writer.clone(), target, artifacts).unwrap();
    let programs = Programs::new(device.clone(), Box::new(Compiled(compiler)), writer, None);
    let layouts = programs.layouts().unwrap();
    let weights = weights::on_device(&device, &checkpoint, programs.weights(), &layouts, &options).unwrap();
    let executor = IreeExecutor::new(device, programs, weights).unwrap();
    let info = model_info("iree", &checkpoint, &decoder);
    Arc::new(GraphModel::new(executor, &decoder, info, &graph).unwrap())
}

/// Attention takes the same positions in the same order for any length of the cache: differences are not
/// rounding.
#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    let scale = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= 1e-5 * scale, "{what}: {error} of {scale}");
}

/// Feeds one sequence over both growths, by single tokens, chunks, a fork and a snapshot, and holds it to one
/// whose cache never grew.
fn grows_twice(kv_cache: KvCacheType, cache: &Path) {
    let text: Vec<u32> = (0..200).map(|i| 3 + (i * 37 + i * i % 11) % 250).collect();
    let (grown, fixed) = (model(kv_cache, &LENGTHS, cache), model(kv_cache, &LENGTHS[2..], cache));
    let mut reference = fixed.open_session(&SessionOptions::default()).unwrap();
    let whole = reference.open().unwrap();
    let mut session = grown.open_session(&SessionOptions::default()).unwrap();
    let mut sequence = session.open().unwrap();
    let mut sizes = Vec::new();
    // Ends of parts, next to where the cache grows by a token, within a chunk, and with a token to spare.
    let ends = [40, 47, 48, 49, 50, 96, 111, 112, 113, 114, 130, 199, 200];
    let mut start = 0;
    for end in ends {
        let what = format!("{kv_cache}, tokens {start} to {end}");
        let expected = feed(&mut *reference, whole, &text[start..end]);
        assert_same(&feed(&mut *session, sequence, &text[start..end]), &expected, &what);
        // Of a cache whole pages take memory that were written to, and no more than it has.
        sizes.push((end, session.stats().kv_bytes, reference.stats().kv_bytes));
        // Before the cache grows, it continues in a copy.
        if [47, 112].contains(&end) {
            let copy = match end {
                47 => session.fork(sequence).unwrap(),
                _ => {
                    let snapshot = session.snapshot(sequence).unwrap();
                    session.restore(&snapshot).unwrap()
                }
            };
            session.close(sequence).unwrap();
            sequence = copy;
        }
        start = end;
    }
    let is_short = |&(_, held, longest): &(usize, u64, u64)| held < longest;
    let grown = sizes.partition_point(is_short);
    assert_eq!(sizes[grown].0, 113, "{kv_cache}: {sizes:?} bytes");
    assert!(sizes[0].1 < sizes[1].1 && !sizes[grown..].iter().any(is_short), "{kv_cache}: {sizes:?} bytes");
    // Back over both growths, and on.
    session.rewind(sequence, 45).unwrap();
    reference.rewind(whole, 45).unwrap();
    let expected = feed(&mut *reference, whole, &text[60..80]);
    assert_same(&feed(&mut *session, sequence, &text[60..80]), &expected, &format!("{kv_cache}, rewound"));
}

#[test]
fn caches_with_scales_keep_their_contents_when_they_grow() {
    grows_twice(KvCacheType::Int8, &cache_dir());
}

mod nightly {
    use super::*;

    #[test]
    fn caches_of_halves_keep_their_contents_when_they_grow() {
        grows_twice(KvCacheType::Bf16, &cache_dir());
    }
}
