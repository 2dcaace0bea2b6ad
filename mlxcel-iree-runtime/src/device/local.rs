//! Devices that are the processor.

use std::ptr;

use mlxcel_core::{Error, ErrorKind, Result};

use super::super::handle::Handle;
use super::super::status::check;
use super::super::sys;
use super::{Driver, MAX_THREADS, proactor_pool};

/// The stack of a worker thread: generated code keeps whole rows on it, up to what the compiler is allowed
/// (`--iree-llvmcpu-stack-allocation-limit`), beneath the frames of the runtime.
const WORKER_STACK_BYTES: usize = 2 * 1024 * 1024;

/// How many physical cores this process may run on, if the system reports it.
pub(super) fn physical_cores() -> Option<usize> {
    /// `IREE_TASK_TOPOLOGY_NODE_ID_ANY`, a macro.
    const ANY_NODE: sys::iree_task_topology_node_id_t = sys::iree_task_topology_node_id_t::MAX;
    let mut topology = Box::<sys::iree_task_topology_t>::default();
    // SAFETY: the topology is initialised by the first call before the others read it.
    let count = unsafe {
        check(
            sys::iree_task_topology_initialize_from_physical_cores(
                ANY_NODE,
                sys::iree_task_topology_performance_level_e_IREE_TASK_TOPOLOGY_PERFORMANCE_LEVEL_ANY,
                sys::iree_task_topology_distribution_e_IREE_TASK_TOPOLOGY_DISTRIBUTION_SCATTER,
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

/// A pool of `threads` workers, each on the CPU that `cpus` has for it, or wherever the system puts it.
fn executor(threads: usize, cpus: Option<&[usize]>) -> Result<Handle<sys::iree_task_executor_t>> {
    const OPERATION: &str = "start the device's threads";
    let mut topology = Box::<sys::iree_task_topology_t>::default();
    let mut options = sys::iree_task_executor_options_t::default();
    let cpus: Option<Vec<u32>> = cpus
        .map(|cpus| cpus.iter().map(|&cpu| u32::try_from(cpu)).collect::<Result<_, _>>())
        .transpose()
        .map_err(|error| {
            Error::new(ErrorKind::InvalidInput, OPERATION, "the CPU does not exist").with_source(error)
        })?;
    // SAFETY: topology and options are initialised before they are read; the list of CPUs is read during the
    // call; the executor copies what it needs from both, and one that is
    // created is ours.
    unsafe {
        match &cpus {
            None => sys::iree_task_topology_initialize_from_group_count(threads, &mut *topology),
            Some(cpus) => check(
                sys::iree_task_topology_initialize_from_logical_cpu_set(
                    cpus.len(),
                    cpus.as_ptr(),
                    &mut *topology,
                ),
                OPERATION,
            )?,
        }
        sys::iree_task_executor_options_initialize(&mut options);
        options.worker_stack_size = WORKER_STACK_BYTES;
        let executor = Handle::create(OPERATION, |out| {
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
        // SAFETY: the arguments are plain values or live for the calls, and what is created is ours. The
        // loader takes no plugins. Of IREE's loaders only the one for embedded ELF files is made: the
        // compiler writes no other for the processor, and it cannot be made to open a library of the
        // system.
        unsafe {
            Ok(Self {
                allocator: Handle::create(operation, |out| {
                    sys::iree_hal_allocator_create_heap(sys::string_view("local"), host, host, out)
                })?,
                loader: Handle::create(operation, |out| {
                    sys::iree_hal_embedded_elf_loader_create(ptr::null_mut(), host, out)
                })?,
                proactors: proactor_pool()?,
            })
        }
    }

    fn create_params(&self) -> sys::iree_hal_device_create_params_t {
        sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: self.proactors.as_ptr() }
    }
}

/// A local-task device and the number of its workers.
pub(super) fn open_task_device(
    threads: usize,
    cpus: Option<&[usize]>,
) -> Result<(Handle<sys::iree_hal_device_t>, usize)> {
    let parts = LocalParts::new()?;
    let executor = executor(threads, cpus)?;
    let mut params = sys::iree_hal_task_device_params_t::default();
    let executors = [executor.as_ptr()];
    let mut loaders = [parts.loader.as_ptr()];
    // SAFETY: the parameters are initialised before they are read; the arrays hold as many live pointers as
    // the counts say. The device retains executor, loader, allocator and proactors, and is ours when it is
    // created.
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
pub(super) fn open_sync_device() -> Result<Handle<sys::iree_hal_device_t>> {
    let parts = LocalParts::new()?;
    let mut params = sys::iree_hal_sync_device_params_t::default();
    let mut loaders = [parts.loader.as_ptr()];
    // SAFETY: the parameters are initialised before they are read; the array holds as many live pointers as
    // the count says. The device retains loader, allocator and proactors, and is ours when it is created.
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
