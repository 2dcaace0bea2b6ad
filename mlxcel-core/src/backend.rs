//! Engines, which load models.

use std::sync::Arc;

#[cfg(doc)]
use crate::error::ErrorKind;
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
    /// Errors of the source ([`ErrorKind::NotFound`], [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`]), of
    /// the options ([`ErrorKind::InvalidInput`]), or of the machine ([`ErrorKind::Toolchain`],
    /// [`ErrorKind::Compile`], [`ErrorKind::Device`], [`ErrorKind::ResourceExhausted`]).
    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>>;

    /// The memory that [`load`](Self::load) and one session at full use would take, without loading anything:
    /// only the headers of the source are read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine does not estimate, as by default, and errors of the source
    /// and of the options as in [`load`](Self::load).
    fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
        let _ = (source, options);
        Err(Error::unsupported("estimate memory", "the engine does not estimate the memory of a model"))
    }
}

forward!(Backend<B> for &B, Box<B>, Arc<B>; {
    fn name() -> &str;
    fn load(source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>>;
    fn estimate(source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate>;
});
