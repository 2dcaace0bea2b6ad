//! Names of devices.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, LoadOptions, Result};
use mlxcel_iree_runtime::{Driver, ListedDevice};

/// A driver, and one of its devices if one is named: `local-task`, `vulkan`, `vulkan:1`, `vulkan:GPU-…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceName {
    pub(crate) driver: Driver,
    /// Its number in the driver's order, or its path.
    pub(crate) device: Option<String>,
}

impl DeviceName {
    /// The name in `options`, by default that of the processor.
    pub(crate) fn of(options: &LoadOptions) -> Result<Self> {
        options.device.as_deref().map_or_else(|| Ok(Self::default()), str::parse)
    }

    /// The index in `listed` of the device, if it is named.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with the names of those that exist.
    pub(crate) fn index_in(&self, listed: &[ListedDevice]) -> Result<Option<usize>> {
        let Some(name) = &self.device else { return Ok(None) };
        let by_path = listed.iter().position(|device| device.path.eq_ignore_ascii_case(name));
        let by_number = || name.parse().ok().filter(|&number: &usize| number < listed.len());
        by_path.or_else(by_number).map(Some).ok_or_else(|| {
            let known = listed.iter().map(|device| format!("{}:{}", self.driver, device.path));
            Error::new(ErrorKind::NotFound, "open a device", "the driver has no such device")
                .with_context("device", self)
                .with_context("known", known.collect::<Vec<_>>().join(", "))
        })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.driver)?;
        self.device.as_ref().map_or(Ok(()), |device| write!(f, ":{device}"))
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (driver, device) =
            name.split_once(':').map_or((name, None), |(driver, device)| (driver, Some(device)));
        let driver: Driver = driver.parse()?;
        let invalid = |message| {
            Err(Error::new(ErrorKind::InvalidInput, "open a device", message).with_context("device", name))
        };
        match device {
            Some(_) if driver.is_local() => invalid("there is one processor, which has no number"),
            Some("") => invalid("a colon is followed by the device's number or path"),
            device => Ok(Self { driver, device: device.map(str::to_owned) }),
        }
    }
}
