//! Compile targets: a backend of the compiler, an architecture, and additional features.

pub(crate) mod accelerator;
pub mod cpu;
mod device;
mod hardware;
mod model;
mod processor;
mod vulkan;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};

pub use device::DeviceDescription;
pub use processor::{BACKEND as CPU_BACKEND, Processor};
pub(crate) use vulkan::MIN_WORKGROUP_THREADS;
pub use vulkan::{VulkanCapability, VulkanProperties};

/// The architecture for "this machine's", until a backend resolves it.
pub(crate) const HOST: &str = "host";

/// A compile target: `llvm-cpu:znver4`, `cuda:sm_89`, `vulkan-spirv:rdna3`.
///
/// A target is plain data and independent of this machine.
/// [`CompileBackends::resolve`](crate::CompileBackends::resolve) resolves it with the
/// [`CompileBackend`](crate::CompileBackend) of its name: that refuses architectures that the compiler does
/// not know, and replaces `host` by this machine's.
///
/// # Grammar
///
/// ```text
/// target       = backend ":" architecture { "," ( "+" | "-" ) feature }
/// architecture = [ family "/" ] name
/// ```
///
/// | backend | architecture | features |
/// |---|---|---|
/// | `llvm-cpu` | a processor as LLVM names it, such as `znver4`, `x86-64-v3`, `neoverse-n1`; `x86_64/generic` and `aarch64/generic`; `host` | of the instruction set: `+avx512bf16`, `-sve` |
/// | `cuda` | a compute capability or a product: `sm_89`, `ada`, `rtx4090` | of PTX: `+ptx80` |
/// | `rocm` | a chip or a product: `gfx942`, `mi300x` | `+xnack`, `-sramecc` |
/// | `vulkan-spirv` | `spirv`, for devices with the properties that are its features; an architecture or a product: `ampere`, `rdna3`, `valhall4` | of `spirv`: `+storage16`, `+storage8`, `+int8`, `+int16`, `+int64`, `+float16`, `+float64`, `+dot-product`, `+subgroup32`, `+threads1024` |
/// | `metal-spirv` | a platform: `macos`, `ios`, `ios-simulator` | none |
///
/// Backend names are case-insensitive and printed in lower case; features are printed in alphabetical order.
/// The printed form parses to the same target.
///
/// ```
/// use mlxcel_iree_target::CompileTarget;
///
/// let target: CompileTarget = "LLVM-CPU:x86-64-v3,-fma,+avx512f".parse()?;
/// assert_eq!((target.backend(), target.architecture()), ("llvm-cpu", "x86-64-v3"));
/// assert_eq!(target.to_string(), "llvm-cpu:x86-64-v3,+avx512f,-fma");
/// assert_eq!(target.to_string().parse::<CompileTarget>()?, target);
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompileTarget {
    backend: String,
    architecture: String,
    features: BTreeMap<String, bool>,
}

impl CompileTarget {
    /// The target of `architecture` on `backend`, without further features.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that the grammar does not allow.
    pub fn new(backend: &str, architecture: &str) -> Result<Self> {
        let (family, name) = architecture.split_once('/').unwrap_or(("-", architecture));
        if !(is_name(backend) && is_name(family) && is_name(name)) {
            return Err(malformed(&format!("{backend}:{architecture}")));
        }
        Ok(Self {
            backend: backend.to_ascii_lowercase(),
            architecture: architecture.to_owned(),
            features: BTreeMap::new(),
        })
    }

    /// Adds a feature that code may use, or (`enabled` false) must not use, regardless of the architecture.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that the grammar does not allow, and for a feature that the
    /// target already has with the opposite sign.
    pub fn with_feature(mut self, feature: &str, enabled: bool) -> Result<Self> {
        if !is_name(feature) {
            return Err(malformed(&format!("{self},{}{feature}", sign(enabled))));
        }
        match self.features.insert(feature.to_owned(), enabled) {
            Some(before) if before != enabled => {
                Err(invalid("the feature is both enabled and disabled").with_context("feature", feature))
            }
            _ => Ok(self),
        }
    }

    /// The name of the compiler's backend, in lower case.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The architecture, as it was written.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Features in addition to the architecture's, by name; false disables one.
    pub fn features(&self) -> impl Iterator<Item = (&str, bool)> {
        self.features.iter().map(|(name, &enabled)| (name.as_str(), enabled))
    }

    /// The features as LLVM takes them, `+one,-other`; none if empty.
    pub(crate) fn feature_flags(&self) -> Option<String> {
        let flags: Vec<String> =
            self.features().map(|(name, enabled)| format!("{}{name}", sign(enabled))).collect();
        (!flags.is_empty()).then(|| flags.join(","))
    }
}

impl fmt::Display for CompileTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend, self.architecture)?;
        self.features().try_for_each(|(name, enabled)| write!(f, ",{}{name}", sign(enabled)))
    }
}

impl FromStr for CompileTarget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(',');
        let (backend, architecture) =
            parts.next().and_then(|head| head.split_once(':')).ok_or_else(|| malformed(text))?;
        parts.try_fold(Self::new(backend, architecture)?, |target, feature| {
            let (enabled, name) = match feature.split_at_checked(1) {
                Some(("+", name)) => (true, name),
                Some(("-", name)) => (false, name),
                _ => return Err(malformed(text)),
            };
            target.with_feature(name, enabled)
        })
    }
}

/// The error of a target that its backend does not resolve.
pub(crate) fn unresolved(message: &'static str, target: &CompileTarget) -> Error {
    Error::new(ErrorKind::InvalidInput, "resolve a compile target", message).with_context("target", target)
}

fn sign(enabled: bool) -> char {
    if enabled { '+' } else { '-' }
}

/// Whether this can be a backend, an architecture or a feature: a name that never needs quoting.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn malformed(text: &str) -> Error {
    invalid("a target has the form backend:architecture[,+feature|,-feature]…, such as cuda:sm_89")
        .with_context("target", text)
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read a compile target", message)
}
