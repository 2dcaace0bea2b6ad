//! Devices: which exist on this machine, and which one a name means.
//!
//! [`LoadOptions::device`](mlxcel_core::LoadOptions::device) names a driver (`local-task`, `vulkan`), or one
//! of its devices: by its number in [`list()`] (`vulkan:1`), or by its path, which is the same in every
//! process (`vulkan:GPU-…`). A driver alone means its best usable device: a discrete GPU before an integrated
//! one, and either before a driver that computes on the CPU.
//!
//! ```
//! for device in mlxcel_iree::devices::list() {
//!     println!("{device}");
//! }
//! ```

mod name;
mod report;

#[cfg(test)]
mod tests;

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_runtime::{Accelerators, Device, DeviceOptions, Driver, ListedDevice};
use mlxcel_iree_target::{
    CompileBackends, CompileTarget, DeviceDescription, Processor, VulkanCapability, VulkanProperties,
};

pub(crate) use name::DeviceName;
use report::VulkanReport;

/// The types of weights and caches that programs read, narrowest first.
const ELEMENT_TYPES: [&str; 4] = ["i8", "bf16", "f16", "f32"];

/// What a device is. Kinds are ordered by what a driver's name alone prefers, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU's driver that computes on the CPU.
    Software,
    /// The CPU.
    Cpu,
    /// Something that its driver does not classify.
    #[default]
    Other,
    /// A GPU that a virtual machine presents.
    Virtual,
    /// A GPU that shares the memory of the CPU.
    Integrated,
    /// A GPU with memory of its own.
    Discrete,
}

impl DeviceKind {
    fn of_vulkan(name: &str) -> Self {
        match name {
            "cpu" => Self::Software,
            "virtual-gpu" => Self::Virtual,
            "integrated-gpu" => Self::Integrated,
            "discrete-gpu" => Self::Discrete,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Software => "software GPU",
            Self::Cpu => "CPU",
            Self::Other => "other",
            Self::Virtual => "virtual GPU",
            Self::Integrated => "integrated GPU",
            Self::Discrete => "discrete GPU",
        })
    }
}

/// A device of this machine, or a driver that has none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name for [`LoadOptions::device`](mlxcel_core::LoadOptions::device): a driver, with the device's
    /// path if it may have several.
    pub device: String,
    /// The name of the product; empty for a driver without devices.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its own memory, in bytes; none for the CPU.
    pub memory_bytes: Option<u64>,
    /// The types of weights and caches that programs for it read, narrowest first.
    pub element_types: Vec<&'static str>,
    /// The minimum and maximum number of invocations that run together; none for devices that do not have
    /// them or do not report them.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// The compile target of the device, as [`CompileTarget`] reads it; none if it cannot be used.
    pub target: Option<String>,
    /// Whether the driver's name alone means this device.
    pub is_default: bool,
    /// Why it cannot be used; none if it can.
    pub unusable: Option<Error>,
}

impl DeviceInfo {
    /// A device of which nothing else is known.
    fn named(device: String) -> Self {
        Self {
            device,
            name: String::new(),
            kind: DeviceKind::Other,
            memory_bytes: None,
            element_types: Vec::new(),
            subgroup_sizes: None,
            target: None,
            is_default: false,
            unusable: None,
        }
    }

    fn of_processor(driver: Driver) -> Self {
        Self {
            name: Processor::detect().to_string(),
            kind: DeviceKind::Cpu,
            element_types: ELEMENT_TYPES.to_vec(),
            target: CompileBackends::builtin().detect("llvm-cpu").ok().map(|target| target.to_string()),
            is_default: true,
            ..Self::named(driver.to_string())
        }
    }

    fn without_devices(driver: Driver, error: Error) -> Self {
        Self { unusable: Some(error), ..Self::named(driver.to_string()) }
    }

    fn of_listed(driver: Driver, listed: &ListedDevice) -> Self {
        let mut info = Self {
            name: listed.name.clone(),
            kind: if driver == Driver::Cuda { DeviceKind::Discrete } else { DeviceKind::Other },
            element_types: ELEMENT_TYPES.to_vec(),
            ..Self::named(format!("{driver}:{}", listed.path))
        };
        if driver == Driver::Vulkan {
            let report = VulkanReport::parse(&listed.report);
            info.kind = report.kind;
            info.memory_bytes = report.memory_bytes;
            info.element_types = element_types(&report.capabilities);
            info.subgroup_sizes = Some(report.subgroup_sizes);
        }
        match usable(driver, listed).and_then(|()| target_of(driver, Some(listed.path.clone()))) {
            Ok(target) => info.target = Some(target.to_string()),
            Err(error) => info.unusable = Some(error),
        }
        info
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        if !self.name.is_empty() {
            write!(f, ": {}, {}", self.name, self.kind)?;
        }
        if let Some(bytes) = self.memory_bytes {
            write!(f, ", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64)?;
        }
        if !self.element_types.is_empty() {
            write!(f, ", {}", self.element_types.join(" "))?;
        }
        match self.subgroup_sizes {
            Some((least, most)) if least == most => write!(f, ", subgroups of {least}")?,
            Some((least, most)) => write!(f, ", subgroups of {least} to {most}")?,
            None => {}
        }
        match (&self.unusable, &self.target) {
            (Some(error), _) => write!(f, "; not usable: {error}"),
            (None, Some(target)) => write!(f, "; target {target}"),
            (None, None) => Ok(()),
        }
    }
}

/// The devices of this machine by every driver, in the order of the drivers' numbers. A driver that is not
/// compiled in or finds no device is listed once, with the reason.
///
/// GPUs are opened for this, which takes some of their memory for a moment.
pub fn list() -> Vec<DeviceInfo> {
    Driver::KNOWN.into_iter().flat_map(of_driver).collect()
}

fn of_driver(driver: Driver) -> Vec<DeviceInfo> {
    if driver.is_local() {
        return vec![DeviceInfo::of_processor(driver)];
    }
    let listed = Accelerators::of(driver).and_then(|accelerators| match accelerators.list()? {
        listed if listed.is_empty() => Err(no_device(driver)),
        listed => Ok(listed),
    });
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => return vec![DeviceInfo::without_devices(driver, error)],
    };
    let mut infos: Vec<_> = listed.iter().map(|listed| DeviceInfo::of_listed(driver, listed)).collect();
    if let Ok(chosen) = choose(&DeviceName { driver, device: None }, &listed) {
        infos[chosen].is_default = true;
    }
    infos
}

/// Opens the device that `options` name: the processor, or a driver's device, by default its best.
///
/// # Errors
/// Those of [`choose`] and of the driver; [`ErrorKind::InvalidInput`] for threads of a device that has none
/// to set.
pub(crate) fn open(options: &DeviceOptions) -> Result<Device> {
    let driver = options.driver;
    if driver.is_local() {
        return Device::open(options);
    }
    options.check_threads()?;
    let accelerators = Accelerators::of(driver)?;
    let listed = accelerators.list()?;
    let listed = &listed[choose(&DeviceName { driver, device: options.device.clone() }, &listed)?];
    Device::open_listed(&accelerators, listed, options, |property| match driver {
        Driver::Vulkan => describe_vulkan(listed, property),
        _ => DeviceDescription::of_driver(driver.name()),
    })
}

/// The index in `listed` of the device that `name` means.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Unsupported`] if none of them can be used, or the
/// named one cannot.
fn choose(name: &DeviceName, listed: &[ListedDevice]) -> Result<usize> {
    if let Some(index) = name.index_in(listed)? {
        return usable(name.driver, &listed[index]).map(|()| index);
    }
    let kind = |listed: &ListedDevice| match name.driver {
        Driver::Vulkan => VulkanReport::parse(&listed.report).kind,
        _ => DeviceKind::Other,
    };
    let mut refusal = None;
    let mut best: Option<(DeviceKind, usize)> = None;
    for (index, listed) in listed.iter().enumerate() {
        match usable(name.driver, listed) {
            // Of equal kinds the first, which is the driver's own preference.
            Ok(()) if best.is_none_or(|(known, _)| kind(listed) > known) => {
                best = Some((kind(listed), index))
            }
            Ok(()) => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    best.map(|(_, index)| index).ok_or_else(|| refusal.unwrap_or_else(|| no_device(name.driver)))
}

fn no_device(driver: Driver) -> Error {
    let message = match driver {
        Driver::Vulkan => {
            "Vulkan's loader finds no device: install the driver of the GPU (mesa-vulkan-drivers, or the vendor's), which adds a \
             file to /usr/share/vulkan/icd.d, and unset VK_DRIVER_FILES and VK_ICD_FILENAMES if they name others"
        }
        _ => "the driver finds no device",
    };
    Error::new(ErrorKind::NotFound, "open a device", message).with_context("device", driver)
}

/// Refuses a device that programs of this engine do not run on, with what it lacks.
fn usable(driver: Driver, listed: &ListedDevice) -> Result<()> {
    if driver != Driver::Vulkan {
        return Ok(());
    }
    let report = VulkanReport::parse(&listed.report);
    let required = [
        VulkanCapability::Float16,
        VulkanCapability::Int8,
        VulkanCapability::Storage8,
        VulkanCapability::Storage16,
    ];
    let lacking = required.iter().filter(|capability| !report.capabilities.contains(capability));
    let missing: Vec<String> =
        report.missing.iter().cloned().chain(lacking.map(ToString::to_string)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = "the device lacks what programs require; a newer driver may have it";
    Err(Error::unsupported("open a device", message)
        .with_context("device", format!("{driver}:{}", listed.path))
        .with_context("name", &listed.name)
        .with_context("missing", missing.join(", ")))
}

/// The compile target of an accelerator, the driver's best by default.
fn target_of(driver: Driver, device: Option<String>) -> Result<CompileTarget> {
    let device = open(&DeviceOptions { driver, device, ..Default::default() })?;
    CompileBackends::builtin().of_device(device.description()).map(|target| target.target().clone())
}

/// The target of this machine's Vulkan device if `target` is `vulkan-spirv:host`, which is known once the
/// device is open.
#[cfg(feature = "compile")]
pub(crate) fn own_target(target: &str) -> Result<Option<CompileTarget>> {
    target.eq_ignore_ascii_case("vulkan-spirv:host").then(|| target_of(Driver::Vulkan, None)).transpose()
}

/// The description of an open Vulkan device; `property` returns its properties by category and name.
fn describe_vulkan(listed: &ListedDevice, property: impl Fn(&str, &str) -> Option<i64>) -> DeviceDescription {
    let report = VulkanReport::parse(&listed.report);
    let is_on = |name| property("vulkan.feature", name) == Some(1);
    let arithmetic = [
        ("shader_float64", VulkanCapability::Float64),
        ("shader_int16", VulkanCapability::Int16),
        ("shader_int64", VulkanCapability::Int64),
    ];
    let arithmetic = arithmetic.into_iter().filter(|(name, _)| is_on(name)).map(|(_, capability)| capability);
    let capabilities = report.capabilities.iter().copied().chain(arithmetic);
    let mut properties = VulkanProperties::new(&listed.name, report.subgroup_size, capabilities);
    properties.subgroup_sizes = report.subgroup_sizes;
    properties.maker = report.maker;
    if let Some(threads) = property("vulkan.device", "max_compute_workgroup_invocations") {
        properties.workgroup_threads = u32::try_from(threads).unwrap_or(properties.workgroup_threads);
    }
    DeviceDescription::of_vulkan(properties)
}

fn element_types(capabilities: &[VulkanCapability]) -> Vec<&'static str> {
    let is_read = |name: &&str| match *name {
        "i8" => capabilities.contains(&VulkanCapability::Storage8),
        "f32" => true,
        _ => capabilities.contains(&VulkanCapability::Storage16),
    };
    ELEMENT_TYPES.into_iter().filter(is_read).collect()
}
