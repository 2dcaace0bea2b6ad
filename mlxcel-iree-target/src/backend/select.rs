//! Selects the compile target: from the options, otherwise the environment, otherwise the device.

use std::env;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_graph::KvCacheType;
use mlxcel_iree_kernels::Schedule;

use super::{CompileBackends, ResolvedTarget};
use crate::target::{CompileTarget, DeviceDescription, HOST};

/// The variable for a backend's name.
const BACKEND_VARIABLE: &str = "MLXCEL_COMPILE_BACKEND";
/// The variable for a target, or for its architecture alone.
const TARGET_VARIABLE: &str = "MLXCEL_COMPILE_TARGET";

/// The backend whose programs a device of this driver runs.
pub(super) fn default_backend(driver: &str) -> &'static str {
    match driver {
        "cuda" => "cuda",
        "hip" => "rocm",
        "vulkan" => "vulkan-spirv",
        "metal" => "metal-spirv",
        _ => "llvm-cpu",
    }
}

/// The requested target, from an engine's options or from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TargetChoice {
    pub(super) backend: Option<String>,
    pub(super) target: Option<String>,
}

impl TargetChoice {
    /// The request in the environment.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a variable that is not valid Unicode.
    pub(super) fn of_environment() -> Result<Self> {
        Ok(Self { backend: variable(BACKEND_VARIABLE)?, target: variable(TARGET_VARIABLE)? })
    }

    /// The selected target: `explicit` if given, otherwise the requested one, otherwise that of `device`, or
    /// of this machine's device for the requested backend.
    ///
    /// # Errors
    /// The errors of [`CompileBackends::resolve`] and [`CompileBackends::detect`];
    /// [`ErrorKind::InvalidInput`] if backend and target do not agree.
    pub(super) fn select(
        &self,
        backends: &CompileBackends,
        explicit: Option<&CompileTarget>,
        device: &DeviceDescription,
    ) -> Result<ResolvedTarget> {
        let default = default_backend(&device.driver);
        let is_of_device = |backend: &str| backend.eq_ignore_ascii_case(default);
        let resolve = |target: &CompileTarget| {
            let is_own = target.architecture() == HOST && is_of_device(target.backend());
            match is_own && target.features().next().is_none() {
                true => backends.of_device(device),
                false => backends.resolve(target),
            }
        };
        let requested = || {
            let backend = self.backend.as_deref();
            let Some(target) = &self.target else {
                return match backend {
                    Some(backend) if !is_of_device(backend) => backends.detect(backend),
                    _ => backends.of_device(device),
                };
            };
            let named: CompileTarget = match target.contains(':') {
                true => target.parse()?,
                false => format!("{}:{target}", backend.unwrap_or(default)).parse()?,
            };
            if backend.is_some_and(|backend| !backend.eq_ignore_ascii_case(named.backend())) {
                let message =
                    "MLXCEL_COMPILE_TARGET is not a target of the backend that MLXCEL_COMPILE_BACKEND names";
                return Err(Error::new(ErrorKind::InvalidInput, "choose a compile target", message));
            }
            resolve(&named)
        };
        match explicit {
            Some(target) => resolve(target),
            None => requested().map_err(|error| self.with_origin(error)),
        }
    }

    /// Adds the variables that led to an error.
    fn with_origin(&self, error: Error) -> Error {
        let variables = [(BACKEND_VARIABLE, &self.backend), (TARGET_VARIABLE, &self.target)];
        variables.into_iter().fold(error, |error, (name, value)| match value {
            Some(value) => error.with_context(name, value),
            None => error,
        })
    }
}

/// Options of an engine's programs. Start from the default and set fields.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProgramOptions {
    /// The compile target; defaults to the environment's, otherwise the device's.
    pub target: Option<CompileTarget>,
    /// The compile backends.
    pub backends: CompileBackends,
    /// The element type of the KV cache.
    pub kv_cache: KvCacheType,
    /// The maximum number of prompt tokens per pass; the default depends on the kernels.
    pub prefill_chunk: Option<usize>,
    /// The schedule of kernels; defaults to a measured one, otherwise to that of the processor's model.
    pub schedule: Option<Schedule>,
}

impl ProgramOptions {
    /// Resolves `target`, or the default target, for `device`.
    ///
    /// # Errors
    /// The errors of [`CompileBackends::resolve`], [`CompileBackends::of_device`] and
    /// [`CompileBackends::detect`]; [`ErrorKind::InvalidInput`] for environment variables that contradict
    /// each other or are not valid Unicode.
    pub fn resolve(
        &self,
        target: Option<&CompileTarget>,
        device: &DeviceDescription,
    ) -> Result<ResolvedTarget> {
        let target = target.or(self.target.as_ref());
        let target = TargetChoice::of_environment()?.select(&self.backends, target, device)?;
        Ok(match self.schedule {
            Some(schedule) => target.with_schedule(schedule),
            None => target,
        })
    }
}

fn variable(name: &'static str) -> Result<Option<String>> {
    let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|value| {
        Error::new(ErrorKind::InvalidInput, "choose a compile target", "the variable is not valid Unicode")
            .with_context(name, value.display())
    })
}
