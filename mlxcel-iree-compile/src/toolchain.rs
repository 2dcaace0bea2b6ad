//! The compiler and the cache of compiled programs.

use std::path::PathBuf;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use crate::artifact::Artifacts;
use crate::cache::{Cache, parse_size};
use crate::compiler::Compiler;

/// The compiler and the cache of compiled programs; defaults to [`Compiler::locate`] and [`Cache::open`].
/// Start from the default and set fields.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Toolchain {
    /// The path of `iree-compile`.
    pub compiler: Option<PathBuf>,
    /// The cache folder. If set, failing to write it is an error.
    pub cache_dir: Option<PathBuf>,
    /// The maximum size of the cache in bytes; overrides the environment.
    pub cache_size: Option<u64>,
    /// From how many bytes of weights a model's are kept in the cache; overrides the environment.
    pub keep_weights: Option<u64>,
}

/// The variable that says from which size on weights are kept.
const KEEP_VARIABLE: &str = "MLXCEL_KEEP_WEIGHTS";
/// The default: smaller models open in some milliseconds anyway.
const KEEP_FROM: u64 = 64 << 20;

impl Toolchain {
    /// Sets the cache folder.
    #[must_use]
    pub fn with_cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// The source of compiled programs.
    ///
    /// # Errors
    /// The errors of [`Cache::open`].
    pub fn artifacts(&self) -> Result<Artifacts> {
        Ok(Artifacts::new(self.compiler.clone(), self.cache()?))
    }

    /// The cache.
    ///
    /// # Errors
    /// The errors of [`Cache::open`].
    pub fn cache(&self) -> Result<Cache> {
        let cache = Cache::open(self.cache_dir.as_deref())?;
        Ok(match self.cache_size {
            Some(bytes) => cache.with_limit(bytes),
            None => cache,
        })
    }

    /// From how many bytes on the weights of a model are kept in the cache: the
    /// [field](Self#structfield.keep_weights), else `MLXCEL_KEEP_WEIGHTS` (`1GiB`, `off`), else 64 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for another value of the variable.
    pub fn keep_weights(&self) -> Result<u64> {
        let variable = || std::env::var(KEEP_VARIABLE).ok().filter(|value| !value.is_empty());
        match (self.keep_weights, variable()) {
            (Some(bytes), _) => Ok(bytes),
            (None, Some(value)) if value == "off" => Ok(u64::MAX),
            (None, Some(value)) => {
                parse_size(&value).map_err(|error| error.with_context("variable", KEEP_VARIABLE))
            }
            (None, None) => Ok(KEEP_FROM),
        }
    }

    /// The compiler.
    ///
    /// # Errors
    /// The errors of [`Compiler::locate`].
    pub fn compiler(&self) -> Result<Compiler> {
        Compiler::locate(self.compiler.as_deref())
    }

    /// The compiler's account of itself, if there is one; it has to be that of the runtime's release.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] for another build of the compiler, and the errors of [`Compiler::revision`].
    pub(crate) fn release_revision(&self, cancel: Option<&CancelToken>) -> Result<Option<String>> {
        let Some(compiler) = Compiler::locate_if_any(self.compiler.as_deref())? else { return Ok(None) };
        let revision = compiler.revision(cancel)?;
        if revision.is_of_release() {
            return Ok(Some(revision.to_string()));
        }
        let message = "the compiler has the release's version number but is another build; bundles need the compiler of the release";
        Err(Error::new(ErrorKind::Toolchain, "write bundle", message)
            .with_context("compiler", compiler.path().display())
            .with_context("revision", revision))
    }
}
