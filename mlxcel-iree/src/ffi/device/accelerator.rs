//! Devices beside the processor, each by a driver that a feature compiles in.
//!
//! A driver finds the system's library when it is created (`libcuda`, `libvulkan`), so a program built with one starts on
//! machines without; there the device is an error.

use std::ptr;

use mlxcel_core::{Error, ErrorKind, Result};

use super::super::handle::Handle;
use super::super::sys;
use super::{Driver, proactor_pool};

const OPERATION: &str = "open a device";

/// The driver, as IREE's own programs make it where their flags say nothing.
fn create(driver: Driver) -> Result<Handle<sys::iree_hal_driver_t>> {
    match driver {
        #[cfg(feature = "cuda")]
        Driver::Cuda => cuda(),
        #[cfg(feature = "vulkan")]
        Driver::Vulkan => vulkan(),
        _ => Err(Error::unsupported(OPERATION, "this program was built without the device")
            .with_context("device", driver)),
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Handle<sys::iree_hal_driver_t>> {
    let mut options = sys::iree_hal_cuda_driver_options_t::default();
    let mut params = sys::iree_hal_cuda_device_params_t::default();
    // SAFETY: options and parameters are initialised before they are read, which is during the call; a driver that is created is ours.
    unsafe {
        sys::iree_hal_cuda_driver_options_initialize(&mut options);
        sys::iree_hal_cuda_device_params_initialize(&mut params);
        params.command_buffer_mode =
            sys::iree_hal_cuda_command_buffer_mode_e_IREE_HAL_CUDA_COMMAND_BUFFER_MODE_STREAM;
        Handle::create(OPERATION, |out| {
            sys::iree_hal_cuda_driver_create(
                sys::string_view(Driver::Cuda.name()),
                &options,
                &params,
                sys::host_allocator(),
                out,
            )
        })
    }
}

#[cfg(feature = "vulkan")]
fn vulkan() -> Result<Handle<sys::iree_hal_driver_t>> {
    let mut options = sys::iree_hal_vulkan_driver_options_t::default();
    // SAFETY: the options are initialised before they are read, which is during the call; without functions the driver takes those of
    // the system's library; a driver that is created is ours.
    unsafe {
        sys::iree_hal_vulkan_driver_options_initialize(&mut options);
        options.requested_features |=
            sys::iree_hal_vulkan_feature_bits_t_IREE_HAL_VULKAN_FEATURE_ENABLE_BUFFER_DEVICE_ADDRESSES;
        options.device_options.flags |=
            sys::iree_hal_vulkan_device_flag_bits_t_IREE_HAL_VULKAN_DEVICE_FLAG_DEDICATED_COMPUTE_QUEUE;
        Handle::create(OPERATION, |out| {
            sys::iree_hal_vulkan_driver_create(
                sys::string_view(Driver::Vulkan.name()),
                &options,
                ptr::null_mut(),
                sys::host_allocator(),
                out,
            )
        })
    }
}

/// The driver's first device.
pub(super) fn open(driver: Driver) -> Result<Handle<sys::iree_hal_device_t>> {
    let hal_driver = create(driver).map_err(|error| explain(driver, error))?;
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

/// The remedy, followed by IREE's message.
fn explain(driver: Driver, error: Error) -> Error {
    let needs = match driver {
        Driver::Cuda => "an NVIDIA GPU and NVIDIA's driver (libcuda)",
        Driver::Vulkan => "a GPU with a Vulkan driver and Vulkan's loader (libvulkan)",
        Driver::LocalTask | Driver::LocalSync => "the processor",
    };
    let message = format!(
        "this machine does not have the device, which requires {needs}; the CPU device is `local-task`"
    );
    Error::new(ErrorKind::NotFound, OPERATION, message).with_context("device", driver).with_source(error)
}
