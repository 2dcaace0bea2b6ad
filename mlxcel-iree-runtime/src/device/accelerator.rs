//! Devices beside the processor, each by a driver that a feature compiles in.
//!
//! A driver finds the system's library when it is created (`libcuda`, `libvulkan`), so a program built with
//! one starts on machines without; there the device is an error.

use std::{ptr, slice};

use mlxcel_core::{Error, ErrorKind, Result};

use super::super::handle::Handle;
use super::super::status::check;
use super::super::sys;
use super::{Driver, proactor_pool};

const OPERATION: &str = "open a device";

/// A device as its driver lists it.
#[derive(Clone, Debug)]
pub struct ListedDevice {
    /// The driver's number for it.
    id: sys::iree_hal_device_id_t,
    /// The driver's name for it, the same in every process: `GPU-` and a UUID.
    pub path: String,
    /// The name of the product, and that of the driver's version.
    pub name: String,
    /// What the driver reports about it, as text.
    pub report: String,
}

impl ListedDevice {
    /// A device that no driver has, for tests of what chooses one; opened, it is the driver's default.
    #[doc(hidden)]
    pub fn for_tests(path: &str, report: &str) -> Self {
        Self { id: 0, path: path.to_owned(), name: "a card".to_owned(), report: report.to_owned() }
    }
}

/// The devices of one driver.
pub struct Accelerators {
    driver: Driver,
    handle: Handle<sys::iree_hal_driver_t>,
}

impl Accelerators {
    /// Opens the system's library of the driver.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the driver is not compiled in, [`ErrorKind::NotFound`] if the system has
    /// no such library.
    pub fn of(driver: Driver) -> Result<Self> {
        let handle = create(driver).map_err(|error| explain(driver, error))?;
        Ok(Self { driver, handle })
    }

    /// Every device, in the order of the driver.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the driver fails.
    pub fn list(&self) -> Result<Vec<ListedDevice>> {
        let (mut count, mut infos) = (0, ptr::null_mut());
        // SAFETY: the driver is live. On success `infos` is null or has `count` records, whose strings lie in
        // the same allocation: they are copied, and then it is freed, once. The status is that of the
        // call.
        let found: Vec<_> = unsafe {
            let status = sys::iree_hal_driver_query_available_devices(
                self.handle.as_ptr(),
                sys::host_allocator(),
                &mut count,
                &mut infos,
            );
            check(status, OPERATION).map_err(|error| explain(self.driver, error))?;
            let records = if infos.is_null() { &[] } else { slice::from_raw_parts(infos, count) };
            let copied = records
                .iter()
                .map(|record| (record.device_id, text(record.path), text(record.name)))
                .collect();
            sys::iree_allocator_free(sys::host_allocator(), infos.cast());
            copied
        };
        found
            .into_iter()
            .map(|(id, path, name)| Ok(ListedDevice { id, path, name, report: self.report(id)? }))
            .collect()
    }

    fn report(&self, id: sys::iree_hal_device_id_t) -> Result<String> {
        let mut builder = sys::iree_string_builder_t::default();
        // SAFETY: the builder is initialised before the driver appends to it, its text is copied while it is
        // live, and it is deinitialised once. The status is that of the call.
        unsafe {
            sys::iree_string_builder_initialize(sys::host_allocator(), &mut builder);
            let status = sys::iree_hal_driver_dump_device_info(self.handle.as_ptr(), id, &mut builder);
            let reported = check(status, OPERATION)
                .map(|()| text(sys::iree_string_view_t { data: builder.buffer, size: builder.size }));
            sys::iree_string_builder_deinitialize(&mut builder);
            reported
        }
    }

    /// Opens one of the [listed](Self::list) devices.
    pub(super) fn open(&self, listed: &ListedDevice) -> Result<Handle<sys::iree_hal_device_t>> {
        let proactors = proactor_pool()?;
        let params =
            sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: proactors.as_ptr() };
        // SAFETY: the driver is live, the number is one of its own, there are no parameters, and those of the
        // creation are read during the call; the device retains driver and proactors, and one that is
        // created is ours.
        let device = unsafe {
            Handle::create(OPERATION, |out| {
                sys::iree_hal_driver_create_device_by_id(
                    self.handle.as_ptr(),
                    listed.id,
                    0,
                    ptr::null(),
                    &params,
                    sys::host_allocator(),
                    out,
                )
            })
        };
        device.map_err(|error| {
            error
                .with_context("device", format!("{}:{}", self.driver, listed.path))
                .with_context("name", &listed.name)
        })
    }
}

/// A property of an open device; none if it has none of that name.
pub(super) fn property(device: &Handle<sys::iree_hal_device_t>, category: &str, key: &str) -> Option<i64> {
    let mut value = 0;
    // SAFETY: the device is live and the strings are for the call; the status is that of the call.
    unsafe {
        let status = sys::iree_hal_device_query_i64(
            device.as_ptr(),
            sys::string_view(category),
            sys::string_view(key),
            &mut value,
        );
        check(status, "query a device").ok()?;
    }
    Some(value)
}

/// A copy of a view of the C side.
///
/// # Safety
/// Its bytes are readable.
unsafe fn text(view: sys::iree_string_view_t) -> String {
    if view.data.is_null() {
        return String::new();
    }
    // SAFETY: by the caller's promise; the view is not null.
    let bytes = unsafe { slice::from_raw_parts(view.data.cast::<u8>(), view.size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// The driver, as IREE's own programs make it where their flags say nothing.
fn create(driver: Driver) -> Result<Handle<sys::iree_hal_driver_t>> {
    match driver {
        #[cfg(feature = "cuda")]
        Driver::Cuda => cuda(),
        #[cfg(feature = "vulkan")]
        Driver::Vulkan => vulkan(),
        _ => Err(driver.not_built_in()),
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Handle<sys::iree_hal_driver_t>> {
    let mut options = sys::iree_hal_cuda_driver_options_t::default();
    let mut params = sys::iree_hal_cuda_device_params_t::default();
    // SAFETY: options and parameters are initialised before they are read, which is during the call; a driver
    // that is created is ours.
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
    // SAFETY: the options are initialised before they are read, which is during the call; without functions
    // the driver takes those of the system's library; a driver that is created is ours.
    unsafe {
        sys::iree_hal_vulkan_driver_options_initialize(&mut options);
        options.requested_features |=
            sys::iree_hal_vulkan_feature_bits_t_IREE_HAL_VULKAN_FEATURE_ENABLE_BUFFER_DEVICE_ADDRESSES;
        options.device_options.flags |=
            sys::iree_hal_vulkan_device_flag_bits_t_IREE_HAL_VULKAN_DEVICE_FLAG_DEDICATED_COMPUTE_QUEUE;
        if cfg!(feature = "dist") {
            // Only the vendored runtime is corrected: another replays copies with the buffers of the first.
            options.device_options.max_cached_bda_replay_instances = 0;
            options.device_options.retained_cached_bda_replay_instances = 0;
        }
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

/// The remedy, followed by IREE's message.
fn explain(driver: Driver, error: Error) -> Error {
    let message = match driver {
        _ if error.kind() == ErrorKind::Unsupported => return error,
        Driver::Cuda => {
            "this machine has no driver for NVIDIA GPUs: install NVIDIA's driver, which contains libcuda"
        }
        Driver::Vulkan => {
            "this machine has no Vulkan: install its loader (libvulkan1 on Debian, vulkan-loader on Fedora) and the driver of \
             the GPU (mesa-vulkan-drivers, or the vendor's)"
        }
        Driver::LocalTask | Driver::LocalSync => "the processor cannot be opened",
    };
    Error::new(ErrorKind::NotFound, OPERATION, message).with_context("device", driver).with_source(error)
}
