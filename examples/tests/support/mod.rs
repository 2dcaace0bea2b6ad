//! Fixtures with their oracles, and the engines that are compiled in.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_core::{Backend, LoadOptions, Model, Precision};

/// What transformers computed for one prompt, in float32.
#[derive(Clone, serde::Deserialize)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub margins: Vec<f32>,
    pub prefill_logits: Vec<f32>,
    #[serde(default)]
    pub completion: String,
}

/// A checkpoint with an `oracle.json`.
pub struct Fixture {
    pub name: &'static str,
    pub path: PathBuf,
}

impl Fixture {
    pub fn storyteller() -> Self {
        Self { name: "storyteller", path: Path::new(env!("CARGO_MANIFEST_DIR")).join("models/storyteller") }
    }

    pub fn named(name: &'static str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let path = if name == "storyteller-4bit" { fixtures } else { fixtures.join("architectures") };
        Self { name, path: path.join(name) }
    }

    pub fn cases(&self) -> Vec<Case> {
        #[derive(serde::Deserialize)]
        struct Oracle {
            cases: Vec<Case>,
        }
        let text = std::fs::read(self.path.join("oracle.json")).unwrap();
        serde_json::from_slice::<Oracle>(&text).unwrap().cases
    }
}

/// Every engine that is compiled in; compiled programs are kept beside the test binaries.
pub fn engines() -> Vec<Box<dyn Backend>> {
    vec![
        #[cfg(feature = "portable")]
        Box::new(mlxcel_session::portable::PortableBackend::new()),
        #[cfg(feature = "iree")]
        Box::new(mlxcel_session::iree::IreeBackend::new().with_cache_dir(cache_dir())),
        #[cfg(feature = "mlx")]
        Box::new(mlxcel_session::mlx::MlxBackend::new()),
    ]
}

/// Where the tests keep compiled programs.
pub fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("iree-cache")
}

pub fn load(engine: &dyn Backend, fixture: &Fixture, precision: Precision) -> Arc<dyn Model> {
    let options = LoadOptions::default().with_precision(precision);
    engine.load(&fixture.path.clone().into(), &options).unwrap()
}
