//! What a plugin says of itself and of its devices.

use std::fmt;
use std::path::PathBuf;

use mlxcel_core::Result;

use crate::ffi::Client;
use crate::options::OptionValue;

/// A plugin and its devices, as [`PjrtBackend::platform`](crate::PjrtBackend::platform) found them. Prints as
/// a few lines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Platform {
    /// Where the plugin was loaded from.
    pub plugin: PathBuf,
    /// The version of PJRT's C API that it implements: major, minor.
    pub api_version: (i32, i32),
    /// The platform's name, such as `cpu`.
    pub name: String,
    /// What it says of its version.
    pub version: String,
    /// The kind of each device of this process.
    pub devices: Vec<String>,
    /// What the plugin says of itself besides, such as `stablehlo_current_version`.
    pub attributes: Vec<(String, OptionValue)>,
}

impl Platform {
    pub(crate) fn of(client: &Client) -> Result<Self> {
        let (plugin, (name, version)) = (client.plugin(), client.platform()?);
        let devices = (0..client.device_count()).map(|device| Ok(client.device(device)?.1));
        Ok(Self {
            plugin: plugin.path().to_owned(),
            api_version: plugin.version(),
            name,
            version,
            devices: devices.collect::<Result<_>>()?,
            attributes: plugin.attributes()?,
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugin, api_version: (major, minor), name, version, devices, attributes } = self;
        writeln!(f, "plugin    {} (PJRT {major}.{minor})", plugin.display())?;
        writeln!(f, "platform  {name}: {}", version.trim())?;
        writeln!(f, "devices   {}: {}", devices.len(), devices.join(", "))?;
        for (name, value) in attributes {
            writeln!(f, "          {name} = {value}")?;
        }
        Ok(())
    }
}
