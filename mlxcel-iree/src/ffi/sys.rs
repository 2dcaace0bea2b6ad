//! The raw C interface: bindings, by `eerie-sys` or from a distribution's headers, and the few functions of the same archive
//! that they leave out.

use std::ffi::{c_char, c_uint, c_void};
use std::marker::{PhantomData, PhantomPinned};

pub(super) use bindings::*;

#[cfg(all(feature = "vendored", not(feature = "dist")))]
use eerie_sys::runtime as bindings;

/// What `build/dist` generates. The settings are those of `eerie-sys`, so names and types are the same.
#[cfg(feature = "dist")]
mod bindings {
    #![allow(
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unnecessary_transmutes,
        unreachable_pub,
        unsafe_op_in_unsafe_fn,
        unused,
        reason = "generated"
    )]

    include!(concat!(env!("OUT_DIR"), "/iree_runtime.rs"));

    // Of iree/vm/bytecode/module.h, which includes headers that a distribution lacks.
    pub type iree_vm_bytecode_module_flags_t = std::ffi::c_uint;
    pub const iree_vm_bytecode_module_flags_e_IREE_VM_BYTECODE_MODULE_FLAG_NONE:
        iree_vm_bytecode_module_flags_t = 0;
    unsafe extern "C" {
        pub fn iree_vm_bytecode_module_create(
            instance: *mut iree_vm_instance_t,
            flags: iree_vm_bytecode_module_flags_t,
            archive_contents: iree_const_byte_span_t,
            archive_allocator: iree_allocator_t,
            allocator: iree_allocator_t,
            out_module: *mut *mut iree_vm_module_t,
        ) -> iree_status_t;
    }
}

/// What a C library only ever hands out by pointer.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name {
            _data: [u8; 0],
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

opaque! {
    /// A pool of worker threads (`iree/task/executor.h`).
    iree_task_executor_t;
}

/// `iree_task_executor_options_t` of `iree/task/executor.h`, passed by value; a test compares its size with what
/// the C side initialises.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct iree_task_executor_options_t {
    pub(super) scheduling_mode: u32,
    pub(super) worker_base_index: usize,
    pub(super) worker_spin_ns: i64,
    pub(super) worker_stack_size: usize,
    pub(super) worker_local_memory_size: usize,
}

/// Room for an `iree_task_topology_t` (`iree/task/topology.h`): 256 groups of about 100 bytes. It is written and read
/// by the C side alone, so its size is all that has to be known; a test compares it with where the last group ends.
#[repr(C, align(64))]
pub(super) struct TopologyStorage(pub(super) [u8; 64 * 1024]);

/// Room for the parameters of either local device (three machine words at most), written and read by the C side.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct DeviceParamsStorage([u64; 16]);

// Bindings are generated from IREE's public headers. How many threads a local-task device has is decided by the
// executor that it is created on, whose headers are internal; the registry of drivers, which is public, takes it from
// process-wide command-line flags instead. So the executor and both local devices are declared here by hand, as in
// iree/task/{topology,executor}.h and iree/hal/drivers/local_{task,sync}/{task,sync}_device.h of release 3.13.0.
unsafe extern "C" {
    pub(super) fn iree_task_topology_initialize_from_group_count(count: usize, out: *mut TopologyStorage);
    pub(super) fn iree_task_topology_initialize_from_logical_cpu_set(
        cpu_count: usize,
        cpu_ids: *const u32,
        out: *mut TopologyStorage,
    ) -> iree_status_t;
    pub(super) fn iree_task_topology_initialize_from_physical_cores(
        node_id: u32,
        performance_level: c_uint,
        distribution: c_uint,
        max_core_count: usize,
        out: *mut TopologyStorage,
    ) -> iree_status_t;
    pub(super) fn iree_task_topology_group_count(topology: *const TopologyStorage) -> usize;
    pub(super) fn iree_task_topology_deinitialize(topology: *mut TopologyStorage);
    #[cfg(test)]
    pub(super) fn iree_task_topology_get_group(
        topology: *const TopologyStorage,
        index: usize,
    ) -> *const c_void;
    #[cfg(test)]
    pub(super) fn iree_task_topology_group_capacity(topology: *const TopologyStorage) -> usize;

    pub(super) fn iree_task_executor_options_initialize(out: *mut iree_task_executor_options_t);
    pub(super) fn iree_task_executor_create(
        options: iree_task_executor_options_t,
        topology: *const TopologyStorage,
        allocator: iree_allocator_t,
        out: *mut *mut iree_task_executor_t,
    ) -> iree_status_t;
    pub(super) fn iree_task_executor_worker_count(executor: *mut iree_task_executor_t) -> usize;
    pub(super) fn iree_task_executor_retain(executor: *mut iree_task_executor_t);
    pub(super) fn iree_task_executor_release(executor: *mut iree_task_executor_t);

    pub(super) fn iree_hal_task_device_params_initialize(out: *mut DeviceParamsStorage);
    pub(super) fn iree_hal_task_device_create(
        identifier: iree_string_view_t,
        params: *const DeviceParamsStorage,
        queue_count: usize,
        queue_executors: *const *mut iree_task_executor_t,
        loader_count: usize,
        loaders: *mut *mut iree_hal_executable_loader_t,
        device_allocator: *mut iree_hal_allocator_t,
        create_params: *const iree_hal_device_create_params_t,
        host_allocator: iree_allocator_t,
        out_device: *mut *mut iree_hal_device_t,
    ) -> iree_status_t;

    pub(super) fn iree_hal_sync_device_params_initialize(out: *mut DeviceParamsStorage);
    pub(super) fn iree_hal_sync_device_create(
        identifier: iree_string_view_t,
        params: *const DeviceParamsStorage,
        create_params: *const iree_hal_device_create_params_t,
        loader_count: usize,
        loaders: *mut *mut iree_hal_executable_loader_t,
        device_allocator: *mut iree_hal_allocator_t,
        host_allocator: iree_allocator_t,
        out_device: *mut *mut iree_hal_device_t,
    ) -> iree_status_t;

    /// The C library's heap: what `iree_allocator_system()`, an inline function, points at.
    pub(super) fn iree_allocator_libc_ctl(
        this: *mut c_void,
        command: iree_allocator_command_t,
        params: *const c_void,
        inout: *mut *mut c_void,
    ) -> iree_status_t;
}

/// IREE's allocator over the C library's heap.
pub(super) fn host_allocator() -> iree_allocator_t {
    #[cfg(not(test))]
    let ctl = iree_allocator_libc_ctl;
    #[cfg(test)]
    let ctl = super::memory_tests::ctl;
    iree_allocator_t { self_: std::ptr::null_mut(), ctl: Some(ctl) }
}

/// An allocator that never frees: for memory that somebody else owns.
pub(super) fn null_allocator() -> iree_allocator_t {
    iree_allocator_t { self_: std::ptr::null_mut(), ctl: None }
}

/// A view of `text` for the duration of a call.
pub(super) fn string_view(text: &str) -> iree_string_view_t {
    iree_string_view_t { data: text.as_ptr().cast::<c_char>(), size: text.len() }
}

/// To wait without a limit: `iree_infinite_timeout()`, an inline function.
pub(super) fn infinite_timeout() -> iree_timeout_t {
    iree_timeout_t {
        type_: iree_timeout_type_e_IREE_TIMEOUT_ABSOLUTE as iree_timeout_type_t,
        nanos: i64::MAX,
    }
}
