//! Compile backends: their targets, compiler flags and devices.

mod gpu;
mod llvm_cpu;
mod registry;
mod resolved;
mod select;
mod vulkan;

#[cfg(test)]
mod tests;

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::ElementType;

use crate::target::{CompileTarget, DeviceDescription};

pub use registry::CompileBackends;
pub use resolved::ResolvedTarget;
pub use select::ProgramOptions;
#[cfg(test)]
use select::{TargetChoice, default_backend};

/// A backend of the IREE compiler: knows its targets, and the compiler flags and devices of each.
///
/// The five of the compiler are in [`CompileBackends::builtin`]; an application adds its own with
/// [`CompileBackends::register`].
///
/// # Contract
///
/// Methods are pure functions, except for [`detect_target`](Self::detect_target), which examines the machine.
/// All other methods get targets that [`resolve`](Self::resolve) returned.
pub trait CompileBackend: fmt::Debug + Send + Sync {
    /// The name, in lower case; the prefix of its targets.
    fn name(&self) -> &str;

    /// The architectures that the compiler supports, for listings.
    fn known_architectures(&self) -> Vec<String>;

    /// The target of this machine's device.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if there is none, or it cannot be detected.
    fn detect_target(&self) -> Result<CompileTarget>;

    /// The resolved target of `device`, which is of one of the [`drivers`](Self::drivers); by default that of
    /// this machine's device.
    ///
    /// # Errors
    /// The errors of [`detect_target`](Self::detect_target); [`ErrorKind::Unsupported`] for a device that
    /// lacks what code needs.
    fn target_of(&self, device: &DeviceDescription) -> Result<CompileTarget> {
        let _ = device;
        self.resolve(&self.detect_target()?)
    }

    /// Resolves a target: replaces `host` by this machine's target, and normalizes equivalent spellings.
    ///
    /// # Errors
    /// The errors of [`detect_target`](Self::detect_target); [`ErrorKind::InvalidInput`] for an architecture
    /// or feature unknown to the compiler; the error lists the known ones.
    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget>;

    /// Whether the compiler supports this target.
    fn supports_target(&self, target: &CompileTarget) -> bool {
        self.resolve(target).is_ok()
    }

    /// The flags of `iree-compile` for the target.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a target that [`resolve`](Self::resolve) rejects.
    fn options(&self, target: &CompileTarget) -> Result<Vec<String>>;

    /// The part of the cache key besides [`options`](Self::options): everything else that generated code
    /// depends on. It must not contain paths, user names, times or anything else that differs between
    /// equal machines.
    fn fingerprint(&self, target: &CompileTarget) -> String {
        target.to_string()
    }

    /// The floating-point types that the target supports in matrix products; always includes float32.
    fn element_types(&self, target: &CompileTarget) -> Vec<ElementType>;

    /// The IREE drivers whose devices run such programs.
    fn drivers(&self) -> &[&str];

    /// Checks that programs for the target run on this device. Called before compiling, and before loading a
    /// program compiled elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with the target, the device, and the mismatch.
    fn check_device(&self, target: &CompileTarget, device: &DeviceDescription) -> Result<()> {
        expect_driver(self.drivers(), target, device)
    }
}

/// Refuses a device of another driver than these.
fn expect_driver(drivers: &[&str], target: &CompileTarget, device: &DeviceDescription) -> Result<()> {
    if drivers.contains(&device.driver.as_str()) {
        return Ok(());
    }
    Err(mismatch("devices of this driver do not run programs for this target", target, device)
        .with_context("drivers that do", drivers.join(", ")))
}

/// The error of a program on a device that it does not support.
fn mismatch(message: &'static str, target: &CompileTarget, device: &DeviceDescription) -> Error {
    Error::new(ErrorKind::Unsupported, "match a program with its device", message)
        .with_context("target", target)
        .with_context("device", device)
}

/// The target of programs for this machine.
#[cfg(test)]
pub(crate) fn host() -> ResolvedTarget {
    resolved("llvm-cpu:host")
}

/// Parses and resolves a target.
#[cfg(test)]
pub(crate) fn resolved(target: &str) -> ResolvedTarget {
    CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap()
}
