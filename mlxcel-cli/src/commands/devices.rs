//! Lists the devices that the IREE engine can run on.

use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;
use mlxcel_session::iree::devices::{DeviceInfo, list};
use mlxcel_session::mlxcel_core::one_line;
use serde_json::{Value, json};

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

/// A device as `--json` prints it.
fn json(info: &DeviceInfo) -> Value {
    json!({
        "device": info.device, "name": info.name, "kind": info.kind.to_string(), "memory_bytes": info.memory_bytes,
        "element_types": info.element_types, "subgroup_sizes": info.subgroup_sizes, "target": info.target,
        "is_default": info.is_default, "unusable": unusable(info),
    })
}

/// Why a device cannot be used.
fn unusable(info: &DeviceInfo) -> Option<String> {
    info.unusable.as_ref().map(|error| own_features(&one_line(error)))
}

/// A few lines: what it is, what it has, and what stands against it.
fn describe(info: &DeviceInfo) -> String {
    let mut text = info.device.clone();
    if !info.name.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(text, "  {} ({})", info.name, info.kind);
    }
    if info.is_default {
        text.push_str(", default");
    }
    if let Some(bytes) = info.memory_bytes {
        let _ = write!(text, "\n    {} MiB", bytes >> 20);
    }
    if !info.element_types.is_empty() {
        let _ = write!(text, "\n    element types {}", info.element_types.join(", "));
    }
    if let Some((least, most)) = info.subgroup_sizes {
        let _ = write!(text, "\n    subgroups of {least} to {most}");
    }
    if let Some(target) = &info.target {
        let _ = write!(text, "\n    target {target}");
    }
    if let Some(reason) = unusable(info) {
        let _ = write!(text, "\n    cannot be used: {reason}");
    }
    text
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let devices = list();
    let output = json!({ "devices": devices.iter().map(json).collect::<Vec<_>>() });
    print(arguments.json, &output, |out, _| {
        devices.iter().try_for_each(|device| writeln!(out, "{}", describe(device)))
    })
}
