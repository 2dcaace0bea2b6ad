//! Backends of the compiler: which targets there are, what each means, and where its programs run.

mod gpu;
mod llvm_cpu;
mod registry;
mod resolved;
mod select;

#[cfg(test)]
mod tests;

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::ElementType;

use crate::target::{CompileTarget, DeviceDescription};

pub(crate) use gpu::accelerator_of;
pub use registry::CompileBackends;
pub use resolved::ResolvedTarget;
pub use select::ProgramOptions;
#[cfg(test)]
use select::{TargetChoice, default_backend};

/// A backend of the IREE compiler: it knows its targets, and the flags and the devices that go with each.
///
/// The five of the compiler are in [`CompileBackends::builtin`]; an application adds its own with
/// [`CompileBackends::register`].
///
/// # Contract
///
/// An implementation is a description, and not a service: equal questions have equal answers, except for
/// [`detect_target`](Self::detect_target), which asks the machine each time. All other methods are given targets that
/// [`resolve`](Self::resolve) returned.
pub trait CompileBackend: fmt::Debug + Send + Sync {
    /// The name, in lower case; what a target begins with.
    fn name(&self) -> &str;

    /// The architectures that the compiler takes, for people to choose from.
    fn known_architectures(&self) -> Vec<String>;

    /// The target of this machine's own device.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there is none, or it cannot be told.
    fn detect_target(&self) -> Result<CompileTarget>;

    /// The target in full: `host` is replaced by what this machine has, and a target that can be written in several ways
    /// is written in one.
    ///
    /// # Errors
    /// Those of [`detect_target`](Self::detect_target); [`ErrorKind::InvalidInput`] for an architecture or a feature that
    /// the compiler does not know, with those that it knows.
    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget>;

    /// Whether the compiler makes programs for this target.
    fn supports_target(&self, target: &CompileTarget) -> bool {
        self.resolve(target).is_ok()
    }

    /// What `iree-compile` is told in order to compile for the target.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a target that [`resolve`](Self::resolve) refuses.
    fn options(&self, target: &CompileTarget) -> Result<Vec<String>>;

    /// What programs for the target are filed under, besides [`options`](Self::options): everything else that code depends
    /// on. It must not hold paths, names of users, times, or anything that is not the same on equal machines.
    fn fingerprint(&self, target: &CompileTarget) -> String {
        target.to_string()
    }

    /// The floating-point types that programs for the target may multiply matrices of; float32 always is.
    fn element_types(&self, target: &CompileTarget) -> Vec<ElementType>;

    /// IREE's names of the drivers whose devices run such programs.
    fn drivers(&self) -> &[&str];

    /// Whether a program for the target runs on this device; asked before compiling, and before loading what was compiled
    /// elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the target, the device, and what does not fit.
    fn check_device(&self, target: &CompileTarget, device: &DeviceDescription) -> Result<()> {
        if self.drivers().contains(&device.driver.as_str()) {
            return Ok(());
        }
        Err(mismatch("devices of this driver do not run programs for this target", target, device)
            .with_context("drivers that do", self.drivers().join(", ")))
    }
}

/// The error of a program on a device that it was not made for.
fn mismatch(message: &'static str, target: &CompileTarget, device: &DeviceDescription) -> Error {
    Error::new(ErrorKind::Unsupported, "match a program with its device", message)
        .with_context("target", target)
        .with_context("device", device)
}

/// What programs of this machine are compiled for.
#[cfg(test)]
pub(crate) fn host() -> ResolvedTarget {
    resolved("llvm-cpu:host")
}

/// What a target that is written down means.
#[cfg(test)]
pub(crate) fn resolved(target: &str) -> ResolvedTarget {
    CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap()
}
