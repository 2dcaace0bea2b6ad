//! Lists the devices that the IREE engine can run on.

use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;
use mlxcel_session::iree::devices::{DeviceInfo, list};
use mlxcel_session::mlxcel_core::one_line;
use serde::Serialize;

use crate::report::{Failure, own_features, print};

/// List the devices of the IREE engine, for --device
///
/// Devices of every driver that this program was built with: the CPU, and with the feature `vulkan` GPUs.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print one JSON object: devices (device, what --device takes; name; kind; memory_bytes; element_types;
    /// subgroup_sizes, minimum and maximum; target, what programs are compiled for; is_default, whether
    /// the driver's name alone means it; unusable, why it cannot be used)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    device: String,
    name: String,
    kind: String,
    memory_bytes: Option<u64>,
    element_types: Vec<&'static str>,
    subgroup_sizes: Option<(u32, u32)>,
    target: Option<String>,
    is_default: bool,
    unusable: Option<String>,
}

impl From<DeviceInfo> for Device {
    fn from(info: DeviceInfo) -> Self {
        Self {
            device: info.device,
            name: info.name,
            kind: info.kind.to_string(),
            memory_bytes: info.memory_bytes,
            element_types: info.element_types,
            subgroup_sizes: info.subgroup_sizes,
            target: info.target,
            is_default: info.is_default,
            unusable: info.unusable.as_ref().map(|error| own_features(&one_line(error))),
        }
    }
}

impl Device {
    /// A few lines: what it is, what it has, and what stands against it.
    fn describe(&self) -> String {
        let mut text = self.device.clone();
        if !self.name.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(text, "  {} ({})", self.name, self.kind);
        }
        if self.is_default {
            text.push_str(", default");
        }
        if let Some(bytes) = self.memory_bytes {
            let _ = write!(text, "\n    {} MiB", bytes >> 20);
        }
        if !self.element_types.is_empty() {
            let _ = write!(text, "\n    element types {}", self.element_types.join(", "));
        }
        if let Some((least, most)) = self.subgroup_sizes {
            let _ = write!(text, "\n    subgroups of {least} to {most}");
        }
        if let Some(target) = &self.target {
            let _ = write!(text, "\n    target {target}");
        }
        if let Some(reason) = &self.unusable {
            let _ = write!(text, "\n    cannot be used: {reason}");
        }
        text
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let devices = list().into_iter().map(Device::from).collect();
    print(arguments.json, &Output { devices }, |out, Output { devices }| {
        devices.iter().try_for_each(|device| writeln!(out, "{}", device.describe()))
    })
}
