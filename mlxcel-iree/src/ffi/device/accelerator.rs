//! Devices beside the processor, opened through IREE's registry of drivers.
//!
//! A driver finds the system's library when it is created (`libcuda`, `libvulkan`), so a program built with one starts on
//! machines without; there the device is an error.

use std::ptr::{self, NonNull};

use mlxcel_core::{Error, ErrorKind, Result};

use super::super::handle::{Handle, missing};
use super::super::status::check;
use super::super::sys;
use super::{Driver, proactor_pool};

const OPERATION: &str = "open a device";

/// The drivers that the linked runtime has.
struct Registry(NonNull<sys::iree_hal_driver_registry_t>);

impl Registry {
    fn new() -> Result<Self> {
        let mut registry = ptr::null_mut();
        // SAFETY: the allocator is static; on success the registry is ours, and it is live while drivers are registered.
        unsafe {
            check(sys::iree_hal_driver_registry_allocate(sys::host_allocator(), &mut registry), OPERATION)?;
            let registry = Self(NonNull::new(registry).ok_or_else(|| missing(OPERATION))?);
            check(sys::iree_hal_register_all_available_drivers(registry.0.as_ptr()), OPERATION)?;
            Ok(registry)
        }
    }

    fn driver(&self, driver: Driver) -> Result<Handle<sys::iree_hal_driver_t>> {
        // SAFETY: the registry is live, the name outlives the call, and a driver that is created is ours.
        unsafe {
            Handle::create(OPERATION, |out| {
                sys::iree_hal_driver_registry_try_create(
                    self.0.as_ptr(),
                    sys::string_view(driver.name()),
                    sys::host_allocator(),
                    out,
                )
            })
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // SAFETY: the registry is ours and not used again; drivers do not refer to it.
        unsafe { sys::iree_hal_driver_registry_free(self.0.as_ptr()) }
    }
}

/// The driver's first device.
pub(super) fn open(driver: Driver) -> Result<Handle<sys::iree_hal_device_t>> {
    let hal_driver = Registry::new()?.driver(driver).map_err(|error| explain(driver, error))?;
    let proactors = proactor_pool()?;
    let params =
        sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: proactors.as_ptr() };
    // SAFETY: the driver is live and the parameters are read during the call; the device retains driver and proactors,
    // and one that is created is ours.
    let device = unsafe {
        Handle::create(OPERATION, |out| {
            sys::iree_hal_driver_create_default_device(
                hal_driver.as_ptr(),
                &params,
                sys::host_allocator(),
                out,
            )
        })
    };
    device.map_err(|error| explain(driver, error))
}

/// The way out, in front of IREE's own words.
fn explain(driver: Driver, error: Error) -> Error {
    let needs = match driver {
        Driver::Cuda => "an NVIDIA GPU and NVIDIA's driver (libcuda)",
        Driver::Vulkan => "a GPU with a Vulkan driver and Vulkan's loader (libvulkan)",
        Driver::LocalTask | Driver::LocalSync => "the processor",
    };
    let message = format!("this machine has no such device: it takes {needs}; the processor is `local-task`");
    Error::new(ErrorKind::NotFound, OPERATION, message).with_context("device", driver).with_source(error)
}
