//! Engines, which load models.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::load::{LoadOptions, ModelSource};
use crate::memory::MemoryEstimate;
use crate::model::Model;

/// An engine: loads models.
///
/// # Contract
///
/// *For users*: a backend is a value; create one with the engine's own options and pass it as `&dyn Backend`
/// or `Arc<dyn Backend>`. Loading may take long (compiling, reading weights): set a
/// [`ProgressFn`](crate::ProgressFn) and a [`CancelToken`](crate::CancelToken) in the options.
///
/// *For implementers*: `load` fails with an error, never a panic, and releases everything when it fails. An
/// option that the engine does not support is an error that names the field; it is never ignored.
/// [`OptionSupport`](crate::OptionSupport) checks the options.
pub trait Backend: Send + Sync {
    /// The engine's short lower-case name, such as `iree`.
    fn name(&self) -> &str;

    /// Loads a model: reads its weights and compiles its programs, if the engine has any.
    ///
    /// # Errors
    ///
    /// Errors of the source ([`ErrorKind::NotFound`](crate::ErrorKind::NotFound),
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt),
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)), of the options
    /// ([`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)), or of the machine
    /// ([`ErrorKind::Toolchain`](crate::ErrorKind::Toolchain),
    /// [`ErrorKind::Compile`](crate::ErrorKind::Compile),
    /// [`ErrorKind::Device`](crate::ErrorKind::Device),
    /// [`ErrorKind::ResourceExhausted`](crate::ErrorKind::ResourceExhausted)).
    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>>;

    /// The memory that [`load`](Self::load) and one session at full use would take, without loading anything:
    /// only the headers of the source are read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the engine does not estimate, as by
    /// default, and errors of the source and of the options as in [`load`](Self::load).
    fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
        let _ = (source, options);
        Err(Error::unsupported("estimate memory", "the engine does not estimate the memory of a model"))
    }
}

macro_rules! forward {
    ($($target:ty),*) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<B: Backend + ?Sized> Backend for $target {
            fn name(&self) -> &str {
                (**self).name()
            }
            fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
                (**self).load(source, options)
            }
            fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
                (**self).estimate(source, options)
            }
        }
    )*};
}
forward!(&B, Box<B>, Arc<B>);
