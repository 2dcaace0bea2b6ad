//! Resolved targets.

use std::fmt;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_kernels::{Hardware, Schedule};
use mlxcel_stablehlo::ElementType;

use super::CompileBackend;
use crate::target::{CompileTarget, DeviceDescription};

/// A resolved [`CompileTarget`] with its backend.
///
/// [`CompileBackends::resolve`](crate::CompileBackends::resolve) creates it. Equal resolved targets generate
/// equal code.
#[derive(Clone, Debug)]
pub struct ResolvedTarget {
    backend: Arc<dyn CompileBackend>,
    target: CompileTarget,
    options: Vec<String>,
    fingerprint: String,
    schedule: Option<Schedule>,
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
        Ok(Self { backend, target, options, fingerprint, schedule: None })
    }

    /// The target; never `host`.
    pub fn target(&self) -> &CompileTarget {
        &self.target
    }

    /// The hardware that programs are generated for.
    ///
    /// # Errors
    /// The errors of a target of a CPU backend that names no processor.
    pub fn hardware(&self) -> Result<Hardware> {
        self.target.hardware(self.schedule)
    }

    /// The schedule of kernels that was [set](Self::with_schedule).
    pub fn schedule(&self) -> Option<Schedule> {
        self.schedule
    }

    /// Sets the schedule of kernels, which defaults to that of the processor's model.
    #[must_use]
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// The flags of `iree-compile`.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// The part of the cache key besides [`options`](Self::options).
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The floating-point types that the target supports in matrix products.
    pub fn element_types(&self) -> Vec<ElementType> {
        self.backend.element_types(&self.target)
    }

    /// `wanted` if the target supports it in matrix products, otherwise float32.
    pub fn element_type_for(&self, wanted: ElementType) -> ElementType {
        if self.element_types().contains(&wanted) { wanted } else { ElementType::F32 }
    }

    /// Checks that programs for the target run on this device. Call it before compiling, and before loading a
    /// program compiled elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the target, the device, and the mismatch.
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
