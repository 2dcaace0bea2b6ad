//! Checkpoints with oracles.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_conformance::Oracle;
use mlxcel_core::{Backend, LoadOptions, Model, Precision};

/// The folder of a checkpoint: `storyteller`, or one of the fixtures.
pub fn folder(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match name {
        "storyteller" => root.join("examples/models/storyteller"),
        "storyteller-4bit" => root.join("fixtures/storyteller-4bit"),
        name => root.join("fixtures/architectures").join(name),
    }
}

/// The `oracle.json` of a checkpoint.
pub fn oracle(name: &str) -> Oracle {
    Oracle::read(folder(name).join("oracle.json")).unwrap()
}

pub fn load(engine: &dyn Backend, name: &str, precision: Precision) -> Arc<dyn Model> {
    engine.load(&folder(name).into(), &LoadOptions::default().with_precision(precision)).unwrap()
}

/// The largest difference relative to the largest magnitude.
pub fn relative_error(logits: &[f32], oracle: &[f32]) -> f32 {
    assert_eq!(logits.len(), oracle.len());
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let scale = oracle.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    let error = logits.iter().zip(oracle).fold(0f32, |largest, (a, b)| largest.max((a - b).abs()));
    error / scale
}
