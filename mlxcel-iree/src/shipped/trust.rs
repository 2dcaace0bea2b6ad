//! Trust: programs run only from bundles that the caller trusts, or that were written with this cache.
//!
//! Programs are machine code, while a checkpoint folder is untrusted data of unknown origin. See ADR 0014 for
//! the rationale.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use mlxcel_iree_target::hex;
use sha2::{Digest, Sha256};

use super::open::Bundle;
use super::source::Source;

/// Which bundles a caller trusts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    folders: Vec<PathBuf>,
    /// SHA-256 sums of manifests, in lower-case hexadecimal digits.
    manifests: Vec<String>,
}

/// What a model's folder has of programs.
pub(crate) enum Offer {
    /// No bundle.
    None,
    /// A bundle whose programs are run.
    Trusted(Box<Bundle>),
    /// A bundle whose programs are not run.
    Untrusted(Untrusted),
}

/// An untrusted bundle in a model's folder.
pub(crate) struct Untrusted {
    source: ModelSource,
}

impl Trust {
    /// Trusts the bundle in `folder`.
    pub(crate) fn add(&mut self, folder: PathBuf) {
        self.folders.push(folder);
    }

    /// Trusts the bundle whose manifest has this SHA-256, in hexadecimal digits.
    pub(crate) fn add_manifest(&mut self, sum: &str) {
        self.manifests.push(sum.to_ascii_lowercase());
    }

    /// The bundle in `source`, if there is one and as far as it may be used; `is_own` returns whether this
    /// machine wrote a manifest.
    ///
    /// # Errors
    ///
    /// The errors of [`Bundle::open`], for a bundle that is trusted. Nothing of another one's manifest is
    /// parsed.
    pub(crate) fn offer(
        &self,
        source: &ModelSource,
        is_own: impl FnOnce(&[u8]) -> Result<bool>,
    ) -> Result<Offer> {
        let Some(text) = Source::new(source).manifest()? else { return Ok(Offer::None) };
        let trusted = match source {
            ModelSource::Folder(folder) => {
                self.names(folder) || self.manifests.contains(&hex(&Sha256::digest(&text))) || is_own(&text)?
            }
            // It is part of the application, as its own code is.
            _ => true,
        };
        if trusted {
            return Ok(Offer::Trusted(Box::new(Bundle::parse(source, &text)?)));
        }
        Ok(Offer::Untrusted(Untrusted { source: source.clone() }))
    }

    /// Whether `folder` is one of the trusted ones, by whatever path.
    fn names(&self, folder: &Path) -> bool {
        let Ok(folder) = fs::canonicalize(folder) else { return false };
        self.folders.iter().any(|trusted| fs::canonicalize(trusted).is_ok_and(|trusted| trusted == folder))
    }
}

impl Untrusted {
    /// `error`, which a load without the bundle's programs ended in, with the way out that the bundle offers.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound {
            return match Bundle::find(&self.source) {
                Ok(Some(bundle)) => bundle.explain_missing_weights(&self.source, error),
                _ => error,
            };
        }
        if error.kind() != ErrorKind::Toolchain {
            return error;
        }
        let message = "the programs of this bundle are machine code from a folder that nobody vouches for, so they are not run, \
                       and there is no compiler to make others; trust the folder (`IreeBackend::with_trusted_bundle`, or \
                       `--trust-bundle` of the programs), or name a compiler";
        let mut refused = Error::new(ErrorKind::Toolchain, "load bundle", message);
        if let ModelSource::Folder(folder) = &self.source {
            refused = refused.with_context("path", folder.display());
        }
        refused.with_source(error)
    }
}
