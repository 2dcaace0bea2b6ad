//! Every family on every engine against transformers' float32 results: whole prompts, any prefill chunking,
//! and batched with others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{
    FOLDER_VARIABLE, Fixture, STATES, covering, engines_and_plugin, load, parts, runs, spares,
};
use mlxcel_conformance::{Outcome, Tolerance};
use mlxcel_core::{Backend, Precision, SessionOptions};

/// How many further folders are drawn for IREE.
const DRAWN: usize = 1;
/// Folders that these engines run in batches, which are programs of their own: conformance holds batches of
/// the other kinds of state.
const BATCHED: [&str; 5] = ["deepseek_v4", "gemma3n_text", "gpt_oss", "kimi_linear", "qwen3_next"];

pub(crate) fn folders() -> Vec<Fixture> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures");
    let root = std::env::var_os(FOLDER_VARIABLE).map_or_else(own, PathBuf::from);
    Fixture::all_in(&root)
}

fn check(engine: &dyn Backend, fixture: &Fixture) -> Outcome {
    let model = load(engine, fixture, Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default())?;
    let (mut oracle, tolerance) = (fixture.oracle(), Tolerance::RANDOM_WEIGHTS);
    oracle.check(&mut *session, &tolerance)?;
    oracle.check_chunks(&mut *session, &[1, 7, 64], &tolerance)?;
    if spares(engine) {
        // Each further sequence is two programs more.
        oracle.cases.truncate(2);
    }
    if !spares(engine) || BATCHED.contains(&fixture.name) {
        oracle.check_batch(&mut *session, &tolerance)?;
    }
    Ok(())
}

/// The folders that engines which compile run: those with all kinds of parts, and [`DRAWN`] of the others,
/// which are other ones in each run.
fn compiled(folders: &[Fixture]) -> BTreeSet<&'static str> {
    let mut compiled = covering(folders, &STATES, parts);
    let others: Vec<_> =
        folders.iter().map(|folder| folder.name).filter(|name| !compiled.contains(name)).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as usize;
    compiled.extend(others.into_iter().cycle().skip(now % folders.len()).take(DRAWN));
    compiled
}

#[test]
fn every_family_is_exact_on_every_engine() {
    let folders = folders();
    assert!(std::env::var_os(FOLDER_VARIABLE).is_some() || folders.len() >= 37, "{} folders", folders.len());
    let compiled = &compiled(&folders);
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        // Folders by turns, so that compilers of one and runs of another share the processor.
        let halves = [0, 1].map(|half| {
            let folders = &folders;
            scope.spawn(move || {
                let mut failures = Vec::new();
                for fixture in folders.iter().skip(half).step_by(2) {
                    for engine in engines_and_plugin() {
                        if !runs(&*engine, fixture, compiled) {
                            continue;
                        }
                        if let Err(error) = check(&*engine, fixture) {
                            failures.push(format!("{} {}: {error}", engine.name(), fixture.name));
                        }
                    }
                }
                failures
            })
        });
        failures.extend(halves.into_iter().flat_map(|half| half.join().unwrap()));
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
