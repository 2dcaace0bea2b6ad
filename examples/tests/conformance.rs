//! Every engine that is compiled in holds the contract with a model of each kind of state, and nothing is excepted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod support;

use std::path::Path;

use mlxcel_conformance::{Expectations, Subject, suite};
use mlxcel_core::{Backend, LoadOptions, ModelSource, Precision};
use support::Fixture;

/// A checkpoint on `engine`: with room for two prompt chunks and a little, so that whatever grows does.
fn subject(engine: impl Backend + Clone + 'static, fixture: Fixture) -> Subject<'static> {
    let load = LoadOptions::default().with_precision(Precision::Exact).with_capacity(160);
    let prompts: Vec<_> = fixture.cases().into_iter().map(|case| case.prompt).collect();
    let (other, other_source) = (engine.clone(), ModelSource::Folder(Fixture::named("llama").path));
    let (broken, broken_load, path) = (engine.clone(), load.clone(), fixture.path.clone());
    let broken_path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken").join(engine.name()).join(fixture.name);
    Subject::new(engine, fixture.path)
        .with_load(load)
        .with_prompts(prompts)
        .with_other_model(move || other.load(&other_source, &LoadOptions::default()))
        .with_broken_weights(move || {
            break_weights(&path, &broken_path);
            broken.load(&broken_path.clone().into(), &broken_load)
        })
}

/// A copy of a checkpoint in which a factor of the last norm, a number of 16 bits, is none.
fn break_weights(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let mut file = std::fs::read(from.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk::<8>().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let norms = ["model.norm.weight", "model.embedding_norm.weight", "backbone.norm_f.weight"];
    let norm = norms.into_iter().find_map(|name| header.get(name)).unwrap();
    let at = 8 + length + norm["data_offsets"][0].as_u64().unwrap() as usize;
    file[at..at + 2].copy_from_slice(&0x7fffu16.to_le_bytes());
    std::fs::write(to.join("model.safetensors"), file).unwrap();
}

/// The suite on one checkpoint of each kind of state.
macro_rules! kinds {
    ($engine:expr) => {
        use super::*;

        mod full {
            use super::*;

            suite!(subject($engine, Fixture::storyteller()), Expectations::none());
        }

        mod windowed {
            use super::*;

            suite!(
                subject($engine, Fixture::named("mistral")).with_window(16).with_bounded_state(16),
                Expectations::none()
            );
        }

        mod latent {
            use super::*;

            suite!(subject($engine, Fixture::named("deepseek_v3")), Expectations::none());
        }

        mod recurrent {
            use super::*;

            suite!(subject($engine, Fixture::named("mamba2")).with_bounded_state(1), Expectations::none());
        }

        mod mixed {
            use super::*;

            suite!(subject($engine, Fixture::named("qwen3_next")), Expectations::none());
        }
    };
}

#[cfg(feature = "portable")]
mod portable {
    kinds!(mlxcel_session::portable::PortableBackend::new());
}

#[cfg(feature = "iree")]
mod iree {
    kinds!(mlxcel_session::iree::IreeBackend::new().with_cache_dir(support::cache_dir()));
}

#[cfg(feature = "mlx")]
mod mlx {
    kinds!(mlxcel_session::mlx::MlxBackend::new());
}
