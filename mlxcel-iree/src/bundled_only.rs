//! Replaces the compile side if the feature `compile` is off: programs come from bundles only.

use mlxcel_core::{Error, ErrorKind, LoadOptions, Result};
use mlxcel_graph::GraphModelOptions;
use mlxcel_iree_runtime::{Constants, Device};
use mlxcel_iree_target::DeviceDescription;
use mlxcel_models::{Checkpoint, Decoder};

use crate::backend::IreeBackend;
use crate::engine::{ProgramSource, Programs};

impl IreeBackend {
    /// Whether this machine wrote the bundle with this manifest; that is not told without the compile side's
    /// cache.
    pub(crate) fn wrote(&self, _: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// None: weights are kept in the compile side's cache.
    pub(crate) fn kept_weights(
        &self,
        _: &Device,
        _: &Checkpoint,
        _: &Programs,
        _: &LoadOptions,
    ) -> Result<Option<Constants>> {
        Ok(None)
    }

    /// Refuses a model without a bundle.
    pub(crate) fn compiled(
        &self,
        _: &Decoder,
        _: &LoadOptions,
        _: &DeviceDescription,
    ) -> Result<(GraphModelOptions, Box<dyn ProgramSource>)> {
        let message = "the model has no bundle whose programs may be run, and this application cannot compile programs: open a \
                       bundle of the model, or build the application with the feature `compile` of mlxcel-iree";
        Err(Error::new(ErrorKind::Toolchain, "load model", message))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mlxcel_core::{Backend, GenerateExt, GenerateOptions, Precision, SessionOptions};
    use mlxcel_iree_compile::Toolchain;
    use mlxcel_iree_compile::bundle::{BundleOptions, write};
    use mlxcel_iree_target::ProgramOptions;

    use super::*;

    #[test]
    fn without_feature_compile_bundles_run_and_checkpoints_name_the_feature() {
        let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        let options = LoadOptions::default().with_precision(Precision::Exact);
        let error = IreeBackend::new().load(&checkpoint.as_path().into(), &options).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Toolchain);
        assert!(error.message().contains("`compile`"), "{error}");

        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("bundle");
        let toolchain = Toolchain::default().with_cache_dir(place.path().join("cache"));
        let wanted = BundleOptions::from(options.clone().with_capacity(150));
        let source = checkpoint.as_path().into();
        write(&toolchain, &ProgramOptions::default(), &source, &folder, &wanted).unwrap();
        // Without the cache nothing says that this machine wrote it.
        let error = IreeBackend::new().load(&folder.as_path().into(), &options).map(drop).unwrap_err();
        assert!(error.message().contains("with_trusted_bundle"), "{error}");
        let engine = IreeBackend::new().with_trusted_bundle(&folder);
        let model = engine.load(&folder.as_path().into(), &options).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let text = session.generate_greedy(&[12, 176, 62, 160, 111], &GenerateOptions::new(6)).unwrap();
        assert_eq!(text.tokens, [223, 54, 213, 72, 1, 99]);
    }
}
