//! The device that a program runs on, as far as its target must match it.

use std::fmt;

use super::accelerator::accelerator_of;
use super::{Processor, VulkanProperties};

/// IREE's name of the Vulkan driver.
const VULKAN: &str = "vulkan";

/// A runtime device: IREE's driver, and what is known of its hardware.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DeviceDescription {
    /// IREE's name of the driver: `local-task`, `local-sync`, `cuda`, `hip`, `vulkan`, `metal`.
    pub driver: String,
    /// The processor, for drivers that run code on it.
    pub processor: Option<Processor>,
    /// The architecture of an accelerator as its backend names it (`sm_90`, `gfx942`), if known.
    pub architecture: Option<String>,
    /// The properties of a Vulkan device, if known.
    pub vulkan: Option<VulkanProperties>,
}

impl DeviceDescription {
    /// The device of this driver on this machine; detects the processor or accelerator.
    pub fn of_driver(driver: &str) -> Self {
        let local = driver.starts_with("local-");
        Self {
            driver: driver.to_owned(),
            processor: local.then(Processor::detect),
            architecture: accelerator_of(driver),
            vulkan: None,
        }
    }

    /// A Vulkan device with these properties.
    pub fn of_vulkan(properties: VulkanProperties) -> Self {
        Self { driver: VULKAN.to_owned(), processor: None, architecture: None, vulkan: Some(properties) }
    }

    mlxcel_core::setters! {
        /// The same with another processor: for checking what would run on another machine.
        with_processor(processor: Processor) => processor = Some(processor);
        /// The same with the architecture of the accelerator.
        with_architecture(architecture: impl Into<String>) => architecture = Some(architecture.into());
    }
}

impl fmt::Display for DeviceDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.driver)?;
        match (&self.processor, &self.architecture, &self.vulkan) {
            (Some(processor), ..) => write!(f, " on {processor}"),
            (None, Some(architecture), _) => write!(f, " on {architecture}"),
            (None, None, Some(properties)) => write!(f, " on {}", properties.name),
            (None, None, None) => Ok(()),
        }
    }
}
