//! Every engine that is compiled in holds the contract with the bundled model, and nothing is excepted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod support;

use mlxcel_conformance::{Expectations, Subject, suite};
use mlxcel_core::{Backend, LoadOptions, ModelSource, Precision};
use support::Fixture;

/// The bundled model on `engine`: with room for two prompt chunks and a little, so that whatever grows does.
fn subject(engine: impl Backend + Clone + 'static) -> Subject<'static> {
    let storyteller = Fixture::storyteller();
    let prompts: Vec<_> = storyteller.cases().into_iter().map(|case| case.prompt).collect();
    let (other, other_source) = (engine.clone(), ModelSource::Folder(Fixture::named("llama").path));
    Subject::new(engine, storyteller.path)
        .with_load(LoadOptions::default().with_precision(Precision::Exact).with_capacity(160))
        .with_prompts(prompts)
        .with_other_model(move || other.load(&other_source, &LoadOptions::default()))
}

#[cfg(feature = "portable")]
mod portable {
    use super::*;

    suite!(subject(mlxcel_session::portable::PortableBackend::new()), Expectations::none());
}

#[cfg(feature = "iree")]
mod iree {
    use super::*;

    suite!(
        subject(mlxcel_session::iree::IreeBackend::new().with_cache_dir(support::cache_dir())),
        Expectations::none()
    );
}

#[cfg(feature = "mlx")]
mod mlx {
    use super::*;

    suite!(subject(mlxcel_session::mlx::MlxBackend::new()), Expectations::none());
}
