//! Weights that are kept in the cache: the same bytes and the same text, mapped where there were any.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mlxcel_core::{
    Backend, CancelToken, ErrorKind, GenerateExt, GenerateOptions, LoadOptions, SessionOptions, TokenId,
};
use mlxcel_graph::weight_arguments;
use mlxcel_iree_compile::cache::{Cache, WeightsKey};
use mlxcel_iree_kernels::layout::TensorRole;
use mlxcel_iree_kernels::{Layouts, Panels};
use mlxcel_models::Checkpoint;
use mlxcel_stablehlo::ElementType;

use super::kept;
use crate::backend::IreeBackend;
use crate::testing::cache_dir;

const HOUR: Duration = Duration::from_secs(3600);

fn storyteller() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/storyteller")
}

fn text(engine: &IreeBackend, source: &Path) -> Vec<TokenId> {
    let model = engine.load(&source.into(), &LoadOptions::default().with_capacity(64)).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    session.generate_greedy(&[1, 35, 38, 40], &GenerateOptions::new(12)).unwrap().tokens
}

#[test]
fn a_model_that_was_opened_before_is_mapped_and_says_the_same() {
    // Programs are those of other tests; the weights are this test's own, by the time of its copy.
    let place = copy();
    let engine = IreeBackend::new().with_cache_dir(cache_dir()).with_prefill_chunk(16);
    let expected = text(&engine.clone().with_kept_weights(u64::MAX), place.path());
    let kept = || {
        let entries = Cache::open(Some(&cache_dir())).unwrap().entries().unwrap();
        entries.into_iter().filter(|entry| entry.program == "weights of llama").collect::<Vec<_>>()
    };
    let before = kept().len();
    let keeping = engine.with_kept_weights(1);
    // A file that was just written may change under the same time.
    set_written(place.path(), SystemTime::now() + HOUR);
    assert_eq!(text(&keeping, place.path()), expected);
    assert_eq!(kept().len(), before);
    set_written(place.path(), SystemTime::now() - HOUR);
    for _ in 0..3 {
        assert_eq!(text(&keeping, place.path()), expected);
        assert_eq!(kept().len(), before + 1);
    }
    let entry = kept().remove(0);
    Cache::open(Some(&cache_dir())).unwrap().remove(&entry).unwrap();
    // An open model keeps what it has mapped.
    assert_eq!(text(&keeping, place.path()), expected);
    let entry = kept().remove(0);
    Cache::open(Some(&cache_dir())).unwrap().remove(&entry).unwrap();
}

/// A copy of the storyteller, whose weights were written an hour ago.
fn copy() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(storyteller().join(file), place.path().join(file)).unwrap();
    }
    set_written(place.path(), SystemTime::now() - HOUR);
    place
}

fn set_written(folder: &Path, at: SystemTime) {
    let weights = File::options().write(true).open(folder.join("model.safetensors")).unwrap();
    weights.set_modified(at).unwrap();
}

#[test]
fn kept_weights_have_the_bytes_of_loaded_ones() {
    let source = copy();
    let checkpoint = Arc::new(Checkpoint::open(source.path()).unwrap());
    let stamp = checkpoint.stamp().unwrap();
    let arguments = weight_arguments(&checkpoint.decoder().unwrap()).unwrap();
    let panels = |name: &str, rank: usize| {
        let panels = Panels { lanes: 8, contents: TensorRole::Dense(ElementType::BF16) };
        (name.to_owned(), (rank > 1).then_some(panels))
    };
    let layouts: Layouts =
        arguments.iter().map(|argument| panels(&argument.name, argument.ty.shape.len())).collect();
    let place = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(place.path())).unwrap();
    let key = WeightsKey::new("test", &arguments, &layouts);
    let options = LoadOptions::default();
    let new = cache.keep_weights(&key).unwrap();
    let of = (&*checkpoint, &*stamp);
    kept::keep(new, 2, of, &arguments, &layouts, &options).unwrap().unwrap();
    let laid_out = kept::map(&cache.weights(&key).unwrap(), &arguments).unwrap();
    let content = (*laid_out.content).as_ref();
    assert!(content.len() > kept::WINDOW, "several windows");
    for (range, argument) in laid_out.places.ranges().zip(&arguments) {
        let stored = checkpoint.weight(&argument.tensor).unwrap().bytes.into_owned();
        let panels = layouts.get(&argument.name);
        let expected = panels.map_or(stored.clone(), |panels| panels.pack(&argument.ty.shape, &stored));
        assert!(content[range.start as usize..range.end as usize] == expected, "{}", argument.name);
    }
    let [entry] = &cache.entries().unwrap()[..] else { panic!("one entry") };
    cache.verify(entry).unwrap();

    // What is cancelled leaves nothing.
    cache.remove(entry).unwrap();
    let cancel = CancelToken::new();
    cancel.cancel();
    let new = cache.keep_weights(&key).unwrap();
    let cancelled =
        kept::keep(new, 2, of, &arguments, &layouts, &options.clone().with_cancel(cancel)).map(drop);
    assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(cache.entries().unwrap().is_empty() && cache.weights(&key).is_none());

    // Nor do weights of files that are written meanwhile.
    for written in [SystemTime::now() - HOUR / 2, SystemTime::now()] {
        set_written(source.path(), written);
        let new = cache.keep_weights(&key).unwrap();
        assert!(kept::keep(new, 2, of, &arguments, &layouts, &options).unwrap().is_none());
        assert!(cache.entries().unwrap().is_empty());
    }
}
