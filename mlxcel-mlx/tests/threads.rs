//! Models leave no threads, in a process of its own, whose threads are counted.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
use mlxcel_mlx::MlxBackend;

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_dropped_model_leaves_no_thread() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    let run = || {
        let model = MlxBackend::new().load(&folder.as_path().into(), &LoadOptions::default()).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(4)).unwrap();
    };
    // The first one starts threads that all share.
    run();
    let before = threads();
    (0..4).for_each(|_| run());
    assert_eq!(threads(), before);
}
