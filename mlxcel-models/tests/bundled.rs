//! The checkpoints in this repository open and describe the networks that they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::{Path, PathBuf};

use mlxcel_models::Checkpoint;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[test]
fn storyteller_opens_and_is_described() {
    let checkpoint = Checkpoint::open(repository("examples/models/storyteller")).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    println!("{decoder}");
    assert_eq!(checkpoint.model_type(), "llama");
}
