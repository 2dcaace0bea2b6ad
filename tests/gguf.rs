//! Architectures of GGUF files, as llama.cpp's converter writes them, against transformers' float32 results
//! of the checkpoints that they were made from.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{CAPACITY, Fixture, check_on_engines};
use mlxcel_conformance::{Oracle, Outcome, Tolerance};
use mlxcel_core::{Backend, LoadOptions, Precision, SessionOptions};

/// What engines that compile run: what other files do not have, which are value heads that share key heads by
/// turns, and gates and ups of experts in one stack. The rest is a matter of names.
const COMPILED: [&str; 2] = ["gemma4_text", "qwen3_5_text"];

fn folders() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/gguf-architectures");
    Fixture::all_in(&root)
}

/// The oracle beside the file, or that of the fixture of this name.
fn oracle(fixture: &Fixture) -> Oracle {
    let original = || fixture.path.join("../../architectures").join(fixture.name).join("oracle.json");
    let own = fixture.path.join("oracle.json");
    Oracle::read(if own.exists() { own } else { original() }).unwrap()
}

fn check(engine: &dyn Backend, fixture: &Fixture) -> Outcome {
    let options = LoadOptions::default().with_precision(Precision::Exact).with_capacity(CAPACITY);
    let model = engine.load(&fixture.path.clone().into(), &options)?;
    let mut session = model.open_session(&SessionOptions::default())?;
    oracle(fixture).check(&mut *session, &Tolerance::RANDOM_WEIGHTS).map(drop)
}

#[test]
fn every_architecture_of_gguf_files_is_exact() {
    let folders = folders();
    assert!(folders.len() >= 47, "{} folders", folders.len());
    check_on_engines(&folders, &BTreeSet::from(COMPILED), check);
}
