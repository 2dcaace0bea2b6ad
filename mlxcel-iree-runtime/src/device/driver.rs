//! The kinds of devices.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};

/// A kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// The processor, with a pool of worker threads.
    #[default]
    LocalTask,
    /// The processor, on the thread that calls.
    LocalSync,
    /// An NVIDIA GPU, through CUDA's driver.
    Cuda,
    /// A GPU, through Vulkan.
    Vulkan,
}

impl Driver {
    /// Every driver, compiled in or not.
    pub const KNOWN: [Self; 4] = [Self::LocalTask, Self::LocalSync, Self::Cuda, Self::Vulkan];

    /// IREE's name of the driver.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalTask => "local-task",
            Self::LocalSync => "local-sync",
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
        }
    }

    /// Whether the device is the processor.
    pub fn is_local(self) -> bool {
        matches!(self, Self::LocalTask | Self::LocalSync)
    }

    /// The error of a driver that is not compiled in.
    pub(crate) fn not_built_in(self) -> Error {
        let crates = if self == Self::Vulkan { "mlxcel-session or mlxcel-iree" } else { "mlxcel-iree" };
        let message =
            format!("this program was built without the driver; enable the feature `{self}` of {crates}");
        Error::unsupported("open a device", message).with_context("device", self)
    }

    /// Whether the driver is compiled in: the processor's are, others by the feature of their name.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::LocalTask | Self::LocalSync => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Vulkan => cfg!(feature = "vulkan"),
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Driver {
    type Err = Error;

    /// The driver of that name, if it is compiled in.
    fn from_str(name: &str) -> Result<Self> {
        let built_in = || {
            let names = Self::KNOWN.into_iter().filter(|driver| driver.is_built_in()).map(Self::name);
            names.collect::<Vec<_>>().join(", ")
        };
        let error = match Self::KNOWN.into_iter().find(|driver| driver.name() == name) {
            Some(driver) if driver.is_built_in() => return Ok(driver),
            Some(driver) => return Err(driver.not_built_in().with_context("known", built_in())),
            None => Error::new(ErrorKind::InvalidInput, "open a device", "the device does not exist"),
        };
        Err(error.with_context("device", name).with_context("known", built_in()))
    }
}
