//! Bundles from a checkpoint folder on: written, read, run, refused.

mod machine;
mod manifests;
mod refusals;
mod trust;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use mlxcel_core::{
    Backend, Error, ErrorKind, GenerateExt, GenerateOptions, LoadOptions, Model, Precision, Result,
    SessionOptions,
};
use tempfile::TempDir;

use super::*;
use crate::backend::IreeBackend;
use crate::bundle::*;

pub(super) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    if name == "storyteller-4bit" { fixtures.join(name) } else { fixtures.join("architectures").join(name) }
}

/// The options of every load here: what the bundles are written with.
pub(super) fn load_options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact)
}

/// An engine that finds no compiler, and must not want one.
pub(super) fn without_compiler() -> IreeBackend {
    IreeBackend::new().with_compiler("/there/is/no/iree-compile").with_cache_dir("/proc/no/cache")
}

/// An engine that finds no compiler and trusts a bundle.
pub(super) fn trusting(bundle: &Path) -> IreeBackend {
    without_compiler().with_trusted_bundle(bundle)
}

/// A short bundle: one cache length, one sequence.
pub(super) fn short() -> BundleOptions {
    BundleOptions::from(load_options().with_capacity(150))
}

/// What tests share, beside their program: what they compile, and a bundle.
fn shared() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("mlxcel-iree-bundles")
}

/// An engine that keeps what it compiles for the other tests.
pub(super) fn engine() -> IreeBackend {
    IreeBackend::new().with_cache_dir(shared().join("cache"))
}

/// A bundle of the fixture for this machine and, as text, for others, written once.
pub(super) fn written() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| write_shared(&engine(), "bundle", &["llvm-cpu:host", STABLEHLO]))
}

fn write_shared(engine: &IreeBackend, name: &str, targets: &[&str]) -> PathBuf {
    let place = shared().join(name);
    fs::create_dir_all(shared()).unwrap();
    let options = short().with_targets(targets.iter().copied()).with_replace(true);
    write(engine, &fixture("llama").into(), &place, &options).unwrap();
    place
}

/// A bundle of the fixture as text alone, which takes no compiler: as good as any to be refused.
pub(super) fn text() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| write_shared(&without_compiler(), "text", &[STABLEHLO]))
}

/// A copy of a bundle for a test to spoil.
pub(super) fn copy(bundle: &Path) -> TempDir {
    fn copy_folder(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy_folder(&entry.path(), &to);
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy_folder(bundle, folder.path());
    folder
}

/// Rewrites a text in the manifest, which must be there.
pub(super) fn edit(bundle: &Path, from: &str, to: &str) {
    let path = bundle.join("bundle.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from} is not in the manifest");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// The path of the first compiled program.
pub(super) fn first_program(bundle: &Path) -> PathBuf {
    let manifest = Bundle::open(bundle).unwrap().manifest().clone();
    bundle.join(&manifest.targets[0].programs[0].path)
}

/// Holds a load to fail with `kind` and words of the reason.
pub(super) fn assert_refused(folder: &Path, kind: ErrorKind, words: &[&str]) {
    let error = load_error(&without_compiler(), folder);
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
}

pub(super) fn load_error(engine: &IreeBackend, folder: &Path) -> Error {
    engine.clone().with_trusted_bundle(folder).load(&folder.into(), &load_options()).map(drop).unwrap_err()
}

/// A prompt of the oracle of the fixture `llama`, and what follows there by wide margins.
const PROMPT: [u32; 5] = [12, 176, 62, 160, 111];
pub(super) const ANSWER: [u32; 6] = [223, 54, 213, 72, 1, 99];

pub(super) fn generate(engine: &IreeBackend, folder: &Path) -> Result<Vec<u32>> {
    answer(&*engine.clone().with_trusted_bundle(folder).load(&folder.into(), &load_options())?)
}

/// What a model says after [`PROMPT`].
pub(super) fn answer(model: &dyn Model) -> Result<Vec<u32>> {
    let mut session = model.open_session(&SessionOptions::default())?;
    Ok(session.generate_greedy(&PROMPT, &GenerateOptions::new(6))?.tokens)
}
