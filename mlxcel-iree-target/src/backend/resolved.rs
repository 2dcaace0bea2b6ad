//! A target, with everything that its backend says about it.

use std::fmt;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_kernels::Hardware;
use mlxcel_stablehlo::ElementType;

use super::CompileBackend;
use crate::target::{CompileTarget, DeviceDescription};

/// A [`CompileTarget`] in full, and the backend that knows it: what programs are compiled for.
///
/// [`CompileBackends::resolve`](crate::CompileBackends::resolve) makes it. Equal ones have equal code.
#[derive(Clone, Debug)]
pub struct ResolvedTarget {
    backend: Arc<dyn CompileBackend>,
    target: CompileTarget,
    options: Vec<String>,
    fingerprint: String,
}

impl ResolvedTarget {
    pub(super) fn new(backend: Arc<dyn CompileBackend>, target: CompileTarget) -> Result<Self> {
        if target.backend() != backend.name().to_ascii_lowercase() {
            let message = "the backend resolved the target to another backend's";
            return Err(Error::new(ErrorKind::Internal, "resolve a compile target", message)
                .with_context("backend", backend.name())
                .with_context("target", target));
        }
        let options = backend.options(&target)?;
        let fingerprint = backend.fingerprint(&target);
        Ok(Self { backend, target, options, fingerprint })
    }

    /// The target, without `host` in it.
    pub fn target(&self) -> &CompileTarget {
        &self.target
    }

    /// What programs for the target are written for.
    ///
    /// # Errors
    /// Those of a target that is no processor's although its backend is.
    pub fn hardware(&self) -> Result<Hardware> {
        self.target.hardware()
    }

    /// What `iree-compile` is told.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// What programs are filed under, besides [`options`](Self::options).
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The floating-point types that programs for the target may multiply matrices of.
    pub fn element_types(&self) -> Vec<ElementType> {
        self.backend.element_types(&self.target)
    }

    /// `wanted`, if programs for the target may multiply matrices of it; else float32, which holds every value of it.
    pub fn element_type_for(&self, wanted: ElementType) -> ElementType {
        if self.element_types().contains(&wanted) { wanted } else { ElementType::F32 }
    }

    /// Whether a program for the target runs on this device; to be asked before compiling it, and before loading one that
    /// was compiled elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the target, the device, and what does not fit.
    pub fn check_device(&self, device: &DeviceDescription) -> Result<()> {
        self.backend.check_device(&self.target, device)
    }
}

impl fmt::Display for ResolvedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.target, f)
    }
}

impl PartialEq for ResolvedTarget {
    fn eq(&self, other: &Self) -> bool {
        (&self.target, &self.options, &self.fingerprint)
            == (&other.target, &other.options, &other.fingerprint)
    }
}

impl Eq for ResolvedTarget {}
