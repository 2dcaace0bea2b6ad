//! Devices: where buffers live and programs run.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mlxcel_core::{Error, ErrorKind, Result};

use super::handle::Handle;
use super::status::check;
use super::sys;

/// The most worker threads that the task executor takes (`IREE_TASK_TOPOLOGY_MAX_GROUP_COUNT`).
const MAX_THREADS: usize = 256;

/// The stack of a worker thread: generated code keeps whole rows on it, up to what the compiler is allowed
/// (`--iree-llvmcpu-stack-allocation-limit`), beneath the frames of the runtime.
const WORKER_STACK_BYTES: usize = 2 * 1024 * 1024;

/// A kind of device that this crate can open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub(crate) enum Driver {
    /// The processor, with a pool of worker threads.
    #[default]
    LocalTask,
    /// The processor, on the thread that calls.
    LocalSync,
}

impl Driver {
    /// Every driver that is compiled in.
    pub(crate) const ALL: [Self; 2] = [Self::LocalTask, Self::LocalSync];

    /// IREE's name of the driver.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LocalTask => "local-task",
            Self::LocalSync => "local-sync",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Driver {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|driver| driver.name() == name).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "open a device", "there is no such device")
                .with_context("device", name)
                .with_context("known", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// How to open a [`Device`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceOptions {
    /// The kind of device.
    pub(crate) driver: Driver,
    /// Worker threads, 1 to 256; by default one for each physical core that the process may use.
    pub(crate) threads: Option<usize>,
}

/// An open device; clones are the same device.
#[derive(Clone)]
pub(crate) struct Device(Arc<Inner>);

// Fields are released in this order: what uses the device before the device.
struct Inner {
    /// The `hal` module that programs import, bound to this device.
    hal_module: Handle<sys::iree_vm_module_t>,
    /// Held because the module's device list borrows from it; a device can be in one group only, so it is made once.
    _group: Handle<sys::iree_hal_device_group_t>,
    device: Handle<sys::iree_hal_device_t>,
    instance: Handle<sys::iree_vm_instance_t>,
    driver: Driver,
    threads: usize,
}

impl Device {
    /// Opens a device and starts its worker threads.
    pub(crate) fn open(options: &DeviceOptions) -> Result<Self> {
        let threads = worker_threads(options)?;
        let instance = vm_instance()?;
        let (device, threads) = match options.driver {
            Driver::LocalTask => open_task_device(threads)?,
            Driver::LocalSync => (open_sync_device()?, 1),
        };
        let group = device_group(&device)?;
        // SAFETY: instance and group are live, both policies are plain values, and a module that is created is ours.
        // The null sink keeps the module from printing to standard error.
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
        let driver = options.driver;
        Ok(Self(Arc::new(Inner { hal_module, _group: group, device, instance, driver, threads })))
    }

    /// How many threads run a dispatch.
    pub(crate) fn threads(&self) -> usize {
        self.0.threads
    }

    /// Whether both are clones of one device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("driver", &self.0.driver).field("threads", &self.0.threads).finish()
    }
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
            Err(invalid("this device runs on the thread that calls it, and has no other"))
        }
        (Driver::LocalTask, Some(threads @ 1..=MAX_THREADS)) => Ok(threads),
        (Driver::LocalTask, Some(_)) => Err(invalid("a device has 1 to 256 threads")),
        (Driver::LocalTask, None) => {
            let allowed = thread::available_parallelism().map_or(1, NonZeroUsize::get);
            // Two threads on one core share its arithmetic units and its path to memory, so they gain nothing.
            Ok(physical_cores().map_or(allowed, |cores| cores.min(allowed)).clamp(1, MAX_THREADS))
        }
    }
}

/// How many physical cores this process may run on, if the system tells.
fn physical_cores() -> Option<usize> {
    const ANY_NODE: u32 = u32::MAX;
    const ANY_PERFORMANCE_LEVEL: u32 = 0;
    const SCATTER: u32 = 1;
    let mut topology = topology_storage();
    // SAFETY: the storage is large enough for a topology (checked by a test) and is initialised by the first call
    // before the others read it.
    let count = unsafe {
        check(
            sys::iree_task_topology_initialize_from_physical_cores(
                ANY_NODE,
                ANY_PERFORMANCE_LEVEL,
                SCATTER,
                MAX_THREADS,
                &mut *topology,
            ),
            "count the processor's cores",
        )
        .ok()?;
        let count = sys::iree_task_topology_group_count(&*topology);
        sys::iree_task_topology_deinitialize(&mut *topology);
        count
    };
    (count > 0).then_some(count)
}

/// Zeroed room for a topology, on the heap because of its size.
pub(super) fn topology_storage() -> Box<sys::TopologyStorage> {
    Box::new(sys::TopologyStorage([0; 64 * 1024]))
}

/// The process's VM instance: it holds the registered types, which live in process-wide variables on the C side, so
/// there must not be two that register at once.
fn vm_instance() -> Result<Handle<sys::iree_vm_instance_t>> {
    static INSTANCE: Mutex<Option<Handle<sys::iree_vm_instance_t>>> = Mutex::new(None);
    let mut slot = INSTANCE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = &*slot {
        return Ok(instance.clone());
    }
    let operation = "start the IREE runtime";
    // SAFETY: an instance that is created is ours; the types are registered with it while it is live, and under a lock.
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

/// A pool of `threads` workers; the system decides where each runs, because pinned workers wait for whoever else was
/// given their core.
fn executor(threads: usize) -> Result<Handle<sys::iree_task_executor_t>> {
    let mut topology = topology_storage();
    let mut options = sys::iree_task_executor_options_t {
        scheduling_mode: 0,
        worker_base_index: 0,
        worker_spin_ns: 0,
        worker_stack_size: 0,
        worker_local_memory_size: 0,
    };
    // SAFETY: topology and options have room for what the C side writes (checked by tests) and are initialised before
    // they are read; the executor copies what it needs from both, and one that is created is ours.
    unsafe {
        sys::iree_task_topology_initialize_from_group_count(threads, &mut *topology);
        sys::iree_task_executor_options_initialize(&mut options);
        options.worker_stack_size = WORKER_STACK_BYTES;
        let executor = Handle::create("start the device's threads", |out| {
            sys::iree_task_executor_create(options, &*topology, sys::host_allocator(), out)
        });
        sys::iree_task_topology_deinitialize(&mut *topology);
        executor
    }
}

/// What both local devices are made from.
struct LocalParts {
    allocator: Handle<sys::iree_hal_allocator_t>,
    loader: Handle<sys::iree_hal_executable_loader_t>,
    proactors: Handle<sys::iree_async_proactor_pool_t>,
}

impl LocalParts {
    fn new() -> Result<Self> {
        let operation = "open a device";
        let host = sys::host_allocator();
        // SAFETY: the arguments are plain values or live for the calls, and what is created is ours. The loader takes
        // no plugins. Of IREE's loaders only the one for embedded ELF files is made: the compiler writes no other for
        // the processor, and it cannot be made to open a library of the system.
        unsafe {
            Ok(Self {
                allocator: Handle::create(operation, |out| {
                    sys::iree_hal_allocator_create_heap(sys::string_view("local"), host, host, out)
                })?,
                loader: Handle::create(operation, |out| {
                    sys::iree_hal_embedded_elf_loader_create(ptr::null_mut(), host, out)
                })?,
                proactors: Handle::create(operation, |out| {
                    let options = sys::iree_async_proactor_pool_options_default();
                    sys::iree_async_proactor_pool_create(1, ptr::null(), options, host, out)
                })?,
            })
        }
    }

    fn create_params(&self) -> sys::iree_hal_device_create_params_t {
        sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: self.proactors.as_ptr() }
    }
}

/// A local-task device and the number of its workers.
fn open_task_device(threads: usize) -> Result<(Handle<sys::iree_hal_device_t>, usize)> {
    let parts = LocalParts::new()?;
    let executor = executor(threads)?;
    let mut params = sys::DeviceParamsStorage::default();
    let executors = [executor.as_ptr()];
    let mut loaders = [parts.loader.as_ptr()];
    // SAFETY: the parameters are initialised in storage that is large enough; the arrays hold as many live pointers as
    // the counts say. The device retains executor, loader, allocator and proactors, and is ours when it is created.
    unsafe {
        sys::iree_hal_task_device_params_initialize(&mut params);
        let device = Handle::create("open a device", |out| {
            sys::iree_hal_task_device_create(
                sys::string_view(Driver::LocalTask.name()),
                &params,
                executors.len(),
                executors.as_ptr(),
                loaders.len(),
                loaders.as_mut_ptr(),
                parts.allocator.as_ptr(),
                &parts.create_params(),
                sys::host_allocator(),
                out,
            )
        })?;
        Ok((device, sys::iree_task_executor_worker_count(executor.as_ptr())))
    }
}

/// A local-sync device.
fn open_sync_device() -> Result<Handle<sys::iree_hal_device_t>> {
    let parts = LocalParts::new()?;
    let mut params = sys::DeviceParamsStorage::default();
    let mut loaders = [parts.loader.as_ptr()];
    // SAFETY: as for the task device, without an executor.
    unsafe {
        sys::iree_hal_sync_device_params_initialize(&mut params);
        Handle::create("open a device", |out| {
            sys::iree_hal_sync_device_create(
                sys::string_view(Driver::LocalSync.name()),
                &params,
                &parts.create_params(),
                loaders.len(),
                loaders.as_mut_ptr(),
                parts.allocator.as_ptr(),
                sys::host_allocator(),
                out,
            )
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
