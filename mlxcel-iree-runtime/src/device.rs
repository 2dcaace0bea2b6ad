//! Devices: where buffers live and programs run.

mod accelerator;
#[cfg(feature = "cuda")]
mod cuda;
mod driver;
mod local;

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mlxcel_core::{Error, ErrorKind, FaultPoint, Faults, Result};
use mlxcel_iree_target::DeviceDescription;

pub use self::accelerator::{Accelerators, ListedDevice};
pub use self::driver::Driver;
use super::handle::Handle;
use super::profile::{Events, Profiling};
use super::status::check;
use super::sys;
use crate::affinity::Affinity;

/// The most worker threads that the task executor takes (`IREE_TASK_TOPOLOGY_MAX_GROUP_COUNT`).
pub(super) const MAX_THREADS: usize = 256;

/// How to open a [`Device`].
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// The kind of device.
    pub driver: Driver,
    /// Which device of the driver, if not its best.
    pub device: Option<String>,
    /// Worker threads of `local-task`, 1 to 256; by default one for each physical core that the process may
    /// use.
    pub threads: Option<usize>,
    /// Where worker threads run; other devices than `local-task` have none.
    pub affinity: Affinity,
    /// Whether to note when each dispatch runs, for [`Device::take_events`].
    pub profile: bool,
    /// Where it is to fail, for tests.
    pub faults: Option<Faults>,
}

/// An open device; clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

// Fields are released in this order: what uses the device before the device.
struct Inner {
    /// Where dispatches are noted. Whatever ran on the device held on to all of this and is gone when it
    /// ends.
    profiling: Option<Profiling>,
    /// The `hal` module that programs import, bound to this device.
    hal_module: Handle<sys::iree_vm_module_t>,
    /// Held because the module's device list borrows from it; a device can be in one group only, so it is
    /// made once.
    _group: Handle<sys::iree_hal_device_group_t>,
    device: Handle<sys::iree_hal_device_t>,
    instance: Handle<sys::iree_vm_instance_t>,
    driver: Driver,
    /// What it is, as programs have to match it.
    description: DeviceDescription,
    /// Its name, the same in every process.
    name: String,
    threads: usize,
    /// Whether programs read and write host memory: true of the processor.
    in_host_memory: bool,
    faults: Option<Faults>,
    /// What a thread enters before it uses a CUDA device.
    #[cfg(feature = "cuda")]
    context: Option<cuda::Context>,
}

impl DeviceOptions {
    /// Refuses threads and their placement where the driver has none to set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`], and [`ErrorKind::Unsupported`] for a placement that the system or the
    /// driver does not have.
    pub fn check_threads(&self) -> Result<()> {
        worker_threads(self)?;
        worker_cpus(self).map(drop)
    }
}

impl Device {
    /// Opens the device of a driver that needs no choice, the processor's, and starts its worker threads.
    ///
    /// # Errors
    /// Those of [`DeviceOptions::check_threads`], [`ErrorKind::ResourceExhausted`] if threads cannot be
    /// started, [`ErrorKind::Internal`] for a driver whose devices are [listed](Self::open_listed).
    pub fn open(options: &DeviceOptions) -> Result<Self> {
        let driver = options.driver;
        let threads = worker_threads(options)?;
        let cpus = worker_cpus(options)?;
        let threads = cpus.as_ref().map_or(threads, Vec::len);
        let (device, threads) = match driver {
            Driver::LocalTask => local::open_task_device(threads, cpus.as_deref())?,
            Driver::LocalSync => (local::open_sync_device()?, threads),
            Driver::Cuda | Driver::Vulkan => {
                let message = "an accelerator is opened from its driver's list";
                return Err(Error::new(ErrorKind::Internal, "open a device", message));
            }
        };
        let profiling = options.profile.then(|| profiling(&device, driver)).transpose()?;
        let identity = Identity::of_driver(driver);
        Self::new(device, identity, threads, driver.is_local(), profiling, options.faults.clone())
    }

    /// Opens one of the devices that its driver lists; `describe` tells what it is by its properties, which
    /// it looks up by category and name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the device is gone, [`ErrorKind::ResourceExhausted`],
    /// [`ErrorKind::Device`].
    pub fn open_listed(
        accelerators: &Accelerators,
        listed: &ListedDevice,
        options: &DeviceOptions,
        describe: impl FnOnce(&dyn Fn(&str, &str) -> Option<i64>) -> DeviceDescription,
    ) -> Result<Self> {
        let driver = options.driver;
        let device = accelerators.open(listed)?;
        let profiling = options.profile.then(|| profiling(&device, driver)).transpose()?;
        let description = describe(&|category, key| accelerator::property(&device, category, key));
        let name = format!("{driver}:{} {}", listed.path, listed.name);
        let identity = Identity { driver, description, name };
        Self::new(device, identity, 1, false, profiling, options.faults.clone())
    }

    /// The processor as a device that has memory of its own: what an accelerator's way with buffers is tested
    /// on.
    #[cfg(test)]
    pub(super) fn open_apart() -> Result<Self> {
        let identity = Identity::of_driver(Driver::LocalSync);
        Self::new(local::open_sync_device()?, identity, 1, false, None, None)
    }

    fn new(
        device: Handle<sys::iree_hal_device_t>,
        Identity { driver, description, name }: Identity,
        threads: usize,
        in_host_memory: bool,
        profiling: Option<Profiling>,
        faults: Option<Faults>,
    ) -> Result<Self> {
        let instance = vm_instance()?;
        let group = device_group(&device)?;
        #[cfg(feature = "cuda")]
        let context = (driver == Driver::Cuda).then(|| cuda::Context::of(&device)).transpose()?;
        // SAFETY: instance and group are live, both policies are plain values, and a module that is created
        // is ours. The null sink keeps the module from printing to standard error.
        let hal_module = unsafe {
            Handle::create("open a device", |out| {
                sys::iree_hal_module_create(
                    instance.as_ptr(),
                    sys::iree_hal_module_device_policy_default(),
                    group.as_ptr(),
                    0,
                    sys::iree_hal_module_debug_sink_null(),
                    sys::host_allocator(),
                    out,
                )
            })?
        };
        Ok(Self(Arc::new(Inner {
            profiling,
            hal_module,
            _group: group,
            device,
            instance,
            driver,
            description,
            name,
            threads,
            in_host_memory,
            faults,
            #[cfg(feature = "cuda")]
            context,
        })))
    }

    /// Prepares the calling thread for calls that reach the device's driver, the release of what it made
    /// included.
    pub(super) fn enter(&self) -> Result<()> {
        self.0.enter()
    }

    /// Fails where a test told the device to.
    ///
    /// # Errors
    /// The fault of [`DeviceOptions::faults`] at this point.
    pub fn check_fault(&self, point: FaultPoint, operation: &'static str) -> Result<()> {
        self.0.faults.as_ref().map_or(Ok(()), |faults| faults.check(point, operation))
    }

    /// What it is, as programs have to match it.
    pub fn description(&self) -> &DeviceDescription {
        &self.0.description
    }

    /// Its name, which tells it from others of its driver, and the name of the product.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many threads of the processor run a dispatch; 1 on an accelerator, whose own are not counted.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// The programs that the device ran since the last call; empty if it is not profiled.
    ///
    /// # Errors
    /// [`ErrorKind::Device`].
    pub fn take_events(&self) -> Result<Events> {
        self.0.profiling.as_ref().map_or_else(|| Ok(Events::default()), Profiling::take)
    }

    /// Whether it is something else than the processor.
    pub fn is_accelerator(&self) -> bool {
        !self.0.driver.is_local()
    }

    pub(super) fn is_vulkan(&self) -> bool {
        self.0.driver == Driver::Vulkan
    }

    /// Whether both are clones of one device.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether programs read and write host memory where it is.
    pub(super) fn is_in_host_memory(&self) -> bool {
        self.0.in_host_memory
    }

    pub(super) fn as_ptr(&self) -> *mut sys::iree_hal_device_t {
        self.0.device.as_ptr()
    }

    pub(super) fn instance(&self) -> &Handle<sys::iree_vm_instance_t> {
        &self.0.instance
    }

    pub(super) fn hal_module(&self) -> &Handle<sys::iree_vm_module_t> {
        &self.0.hal_module
    }
}

impl Inner {
    fn enter(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(context) = &self.context {
            return context.enter();
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What cannot be entered cannot be released by its driver either, which ignores that.
        let _ = self.enter();
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("driver", &self.0.driver).field("threads", &self.0.threads).finish()
    }
}

/// Which device it is.
struct Identity {
    driver: Driver,
    description: DeviceDescription,
    name: String,
}

impl Identity {
    fn of_driver(driver: Driver) -> Self {
        Self { driver, description: DeviceDescription::of_driver(driver.name()), name: driver.to_string() }
    }
}

/// The CPU of each worker thread, where the options say.
fn worker_cpus(options: &DeviceOptions) -> Result<Option<Vec<usize>>> {
    let DeviceOptions { driver, affinity, .. } = options;
    if *affinity != Affinity::System && *driver != Driver::LocalTask {
        let message = "this device has no worker threads to pin";
        return Err(Error::unsupported("place threads", message)
            .with_context("device", driver)
            .with_context("affinity", affinity));
    }
    affinity.cpus(options.threads)
}

/// The number of worker threads that the options ask for.
fn worker_threads(options: &DeviceOptions) -> Result<usize> {
    let invalid = |message| {
        Error::new(ErrorKind::InvalidInput, "open a device", message)
            .with_context("device", options.driver)
            .with_context("threads", options.threads.unwrap_or_default())
    };
    match (options.driver, options.threads) {
        (Driver::LocalSync, Some(1) | None) => Ok(1),
        (Driver::LocalSync, Some(_)) => {
            Err(invalid("this device runs on the calling thread and has no others"))
        }
        (Driver::Cuda | Driver::Vulkan, None) => Ok(1),
        (Driver::Cuda | Driver::Vulkan, Some(_)) => {
            Err(invalid("the number of threads cannot be set for this device"))
        }
        (Driver::LocalTask, Some(threads @ 1..=MAX_THREADS)) => Ok(threads),
        (Driver::LocalTask, Some(_)) => Err(invalid("a device has 1 to 256 threads")),
        (Driver::LocalTask, None) => {
            let allowed = thread::available_parallelism().map_or(1, NonZeroUsize::get);
            // Two threads on one core share its arithmetic units and its path to memory, so they gain
            // nothing.
            Ok(local::physical_cores().map_or(allowed, |cores| cores.min(allowed)).clamp(1, MAX_THREADS))
        }
    }
}

/// Begins to note what runs on a device.
fn profiling(device: &Handle<sys::iree_hal_device_t>, driver: Driver) -> Result<Profiling> {
    if driver == Driver::Cuda {
        let message = "IREE's driver does not record what runs on this device";
        return Err(Error::unsupported("profile the device", message).with_context("device", driver));
    }
    Profiling::begin(device, driver.is_local())
}

/// The process's VM instance: it holds the registered types, which live in process-wide variables on the C
/// side, so there must not be two that register at once.
fn vm_instance() -> Result<Handle<sys::iree_vm_instance_t>> {
    static INSTANCE: Mutex<Option<Handle<sys::iree_vm_instance_t>>> = Mutex::new(None);
    let mut slot = INSTANCE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = &*slot {
        return Ok(instance.clone());
    }
    let operation = "start the IREE runtime";
    // SAFETY: an instance that is created is ours; the types are registered with it while it is live, and
    // under the lock that keeps all others from registering. The status is that of the call.
    let instance = unsafe {
        let instance = Handle::create(operation, |out| {
            sys::iree_vm_instance_create(
                sys::IREE_VM_TYPE_CAPACITY_DEFAULT as usize,
                sys::host_allocator(),
                out,
            )
        })?;
        check(sys::iree_hal_module_register_all_types(instance.as_ptr()), operation)?;
        instance
    };
    Ok(slot.insert(instance).clone())
}

/// The threads on which a device waits for others.
fn proactor_pool() -> Result<Handle<sys::iree_async_proactor_pool_t>> {
    // SAFETY: the arguments are plain values, and a pool that is created is ours.
    unsafe {
        Handle::create("open a device", |out| {
            let options = sys::iree_async_proactor_pool_options_default();
            sys::iree_async_proactor_pool_create(1, ptr::null(), options, sys::host_allocator(), out)
        })
    }
}

/// A group of this one device, which is what a program's `hal` module is bound to.
fn device_group(device: &Handle<sys::iree_hal_device_t>) -> Result<Handle<sys::iree_hal_device_group_t>> {
    let operation = "open a device";
    // `iree_async_frontier_tracker_options_default()`, an inline function.
    let options = sys::iree_async_frontier_tracker_options_t {
        axis_table_capacity: 256,
        session_epoch: 1,
        machine_index: 0,
    };
    // SAFETY: the device is live; the group retains it and the tracker, and both that are created are ours.
    unsafe {
        let tracker: Handle<sys::iree_async_frontier_tracker_t> = Handle::create(operation, |out| {
            sys::iree_async_frontier_tracker_create(options, sys::host_allocator(), out)
        })?;
        Handle::create(operation, |out| {
            sys::iree_hal_device_group_create_from_device(
                device.as_ptr(),
                tracker.as_ptr(),
                sys::host_allocator(),
                out,
            )
        })
    }
}
