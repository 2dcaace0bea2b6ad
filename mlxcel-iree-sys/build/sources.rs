//! Which C files of IREE the library is made from.
//!
//! They are what devices on the processor, programs in IREE's bytecode and the loaders for embedded ELF files
//! and system libraries need: the files that a static link takes out of an archive of all of IREE's runtime.
//! Files with an `#if` around their content that names a platform are compiled everywhere; those without are
//! listed by platform.

/// The platform and the drivers that the files are chosen for.
#[derive(Clone, Copy)]
pub(crate) struct Selection<'a> {
    /// `CARGO_CFG_TARGET_OS`
    pub(crate) system: &'a str,
    /// Whether Microsoft's compiler is used, which has no assembler in C.
    pub(crate) msvc: bool,
    /// `CARGO_CFG_TARGET_ARCH`
    pub(crate) architecture: &'a str,
    pub(crate) cuda: bool,
    pub(crate) vulkan: bool,
}

/// A folder below `runtime/src/iree/` and files in it, without `.c`.
type Files = (&'static str, &'static [&'static str]);

const COMMON: &[Files] = &[
    (
        "async",
        &[
            "buffer_pool", "event", "file", "frontier", "frontier_tracker", "notification", "operation",
            "primitive", "proactor", "proactor_platform", "region", "semaphore", "slab", "socket",
        ],
    ),
    (
        "async/util",
        &[
            "completion_pool",
            "message_pool",
            "operation_pool",
            "proactor_pool",
            "proactor_thread",
            "proactor_thread_runner",
            "ready_pool",
            "sequence_emulation",
            "signal",
        ],
    ),
    (
        "base",
        &[
            "allocator", "allocator_libc", "bitfield", "bitmap", "printf", "status", "status_stack_trace",
            "string_builder", "string_view", "time", "wait_source",
        ],
    ),
    (
        "base/internal",
        &[
            "arena",
            "atomic_slist",
            "cpu",
            "dynamic_library_posix",
            "dynamic_library_win32",
            "fpu_state",
            "memory",
            "path",
            "sysfs",
            "time",
        ],
    ),
    (
        "base/threading",
        &[
            "affinity", "mutex", "notification", "numa_fallback", "numa_linux", "numa_win32", "thread",
            "thread_darwin", "thread_pthreads", "thread_win32", "wait_address",
        ],
    ),
    (
        "hal",
        &[
            "allocator",
            "allocator_heap",
            "buffer",
            "buffer_heap",
            "buffer_transfer",
            "buffer_view",
            "buffer_view_util",
            "channel",
            "channel_provider",
            "command_buffer",
            "command_buffer_validation",
            "device",
            "device_group",
            "driver",
            "event",
            "executable",
            "executable_cache",
            "fence",
            "file",
            "pool",
            "pool_set",
            "profile_options",
            "profile_sink",
            "semaphore",
            "string_util",
            "topology_builder",
        ],
    ),
    ("hal/drivers/local_sync", &["sync_device", "sync_event", "sync_semaphore"]),
    (
        "hal/drivers/local_task",
        &[
            "block_builder",
            "block_command_buffer",
            "block_command_ops",
            "block_processor",
            "task_device",
            "task_event",
            "task_queue",
            "task_semaphore",
        ],
    ),
    (
        "hal/local",
        &[
            "executable_environment",
            "executable_format",
            "executable_library_util",
            "executable_loader",
            "executable_plugin_manager",
            "inline_command_buffer",
            "inline_dispatch",
            "local_executable",
            "local_executable_cache",
            "profile",
            "transient_buffer",
        ],
    ),
    ("hal/local/elf", &["elf_module", "fatelf"]),
    ("hal/local/elf/arch", &["arm_32", "arm_64", "riscv", "x86_32", "x86_64"]),
    ("hal/local/elf/platform", &["apple", "generic", "linux", "windows"]),
    ("hal/local/loaders", &["embedded_elf_loader", "system_library_loader"]),
    (
        "hal/memory",
        &["cpu_slab_provider", "passthrough_pool", "slab_provider", "tlsf", "tlsf_pool", "tracing"],
    ),
    (
        "hal/utils",
        &[
            "deferred_command_buffer",
            "elf_format",
            "fd_file",
            "file_registry",
            "memory_file",
            "platform_topology",
            "platform_topology_darwin",
            "platform_topology_fallback",
            "platform_topology_sysfs",
            "platform_topology_win32",
            "profile_event_ring",
            "resource_set",
        ],
    ),
    ("io", &["file_contents", "file_handle"]),
    ("modules/hal", &["debugging", "module", "types"]),
    ("modules/hal/utils", &["buffer_diagnostics"]),
    (
        "task",
        &[
            "executor", "process", "scope", "topology", "topology_cpuinfo", "topology_darwin",
            "topology_fallback", "topology_sysfs", "topology_win32", "worker",
        ],
    ),
    (
        "vm",
        &[
            "buffer", "context", "instance", "invocation", "list", "loop", "module", "native_module", "ref",
            "shims", "stack",
        ],
    ),
    ("vm/bytecode", &["archive", "disassembler", "dispatch", "module", "verifier"]),
    ("vm/bytecode/utils", &["block_list", "features"]),
];

/// How threads wait for each other and for files.
const POSIX: &[Files] = &[(
    "async/platform/posix",
    &[
        "event_set_epoll", "event_set_kqueue", "event_set_poll", "fd_map", "fence", "proactor", "relay",
        "signal", "socket", "timer_list", "wake", "worker",
    ],
)];
const LINUX: &[Files] = &[
    (
        "async/platform/io_uring",
        &[
            "buffer_ring",
            "notification",
            "proactor",
            "proactor_probe",
            "proactor_registration",
            "proactor_submit",
            "relay",
            "socket",
            "sparse_table",
            "uring",
        ],
    ),
    ("async/platform/linux", &["signal"]),
];
const WINDOWS: &[Files] = &[
    ("async", &["address", "address_win32"]),
    ("async/platform/iocp", &["proactor", "proactor_submit", "socket", "timer_list"]),
];

/// What drivers of accelerators share.
const ACCELERATORS: &[Files] = &[("hal/utils", &["executable_debug_info", "executable_header"])];
const CUDA: &[Files] = &[
    (
        "hal/drivers/cuda",
        &[
            "cuda_allocator",
            "cuda_buffer",
            "cuda_device",
            "cuda_driver",
            "cuda_dynamic_symbols",
            "cuda_status_util",
            "event_pool",
            "event_semaphore",
            "graph_command_buffer",
            "memory_pools",
            "native_executable",
            "nccl_channel",
            "nccl_dynamic_symbols",
            "nccl_status_util",
            "nop_executable_cache",
            "stream_command_buffer",
            "timepoint_pool",
        ],
    ),
    (
        "hal/utils",
        &[
            "collective_batch",
            "deferred_work_queue",
            "file_transfer",
            "queue_emulation",
            "queue_host_call_emulation",
            "stream_tracing",
        ],
    ),
];
const VULKAN: &[Files] = &[
    (
        "hal/drivers/vulkan",
        &[
            "allocator",
            "api",
            "buffer",
            "builtins",
            "command_buffer",
            "debug_utils",
            "device_options",
            "device_plan",
            "driver",
            "executable",
            "executable_cache",
            "logical_device",
            "physical_device",
            "physical_device_selection",
            "queue",
            "semaphore",
            "slab_provider",
            "sparse_buffer",
            "spirv",
        ],
    ),
    ("hal/drivers/vulkan/util", &["libvulkan"]),
];

/// Reading flatbuffers, by another project.
const FLATCC: &str = "third_party/flatcc/src/runtime/verifier.c";
/// Calls between the conventions of Windows and of programs, in MASM.
const WINDOWS_THUNKS: &str = "runtime/src/iree/hal/local/elf/arch/x86_64_msvc.asm";

/// The files to compile, relative to the folder of IREE's sources.
pub(crate) fn files(selection: Selection<'_>) -> Vec<String> {
    let mut groups = vec![COMMON];
    match selection.system {
        "windows" => groups.push(WINDOWS),
        "linux" | "android" => groups.extend([POSIX, LINUX]),
        _ => groups.push(POSIX),
    }
    if selection.cuda || selection.vulkan {
        groups.push(ACCELERATORS);
    }
    if selection.cuda {
        groups.push(CUDA);
    }
    if selection.vulkan {
        groups.push(VULKAN);
    }
    let mut files: Vec<String> = groups
        .into_iter()
        .flatten()
        .flat_map(|(folder, names)| {
            names.iter().map(move |name| format!("runtime/src/iree/{folder}/{name}.c"))
        })
        .collect();
    files.push(FLATCC.to_owned());
    if selection.msvc && selection.architecture == "x86_64" {
        files.push(WINDOWS_THUNKS.to_owned());
    }
    files
}
