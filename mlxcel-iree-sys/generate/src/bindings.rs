//! Bindings by bindgen: what the engine uses, and the types that it consists of.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use bindgen::{Builder, EnumVariation, Formatter, RustEdition, RustTarget};

use crate::names::PREFIX;

pub(super) const HEADERS: &[&str] = &[
    "iree/base/api.h",
    "iree/async/frontier_tracker.h",
    "iree/async/util/proactor_pool.h",
    "iree/hal/api.h",
    "iree/hal/drivers/cuda/api.h",
    "iree/hal/drivers/local_sync/sync_device.h",
    "iree/hal/drivers/local_task/task_device.h",
    "iree/hal/drivers/vulkan/api.h",
    "iree/hal/local/loaders/embedded_elf_loader.h",
    "iree/hal/local/loaders/system_library_loader.h",
    "iree/modules/hal/debugging.h",
    "iree/modules/hal/module.h",
    "iree/modules/hal/types.h",
    "iree/task/executor.h",
    "iree/task/topology.h",
    "iree/vm/api.h",
    "iree/vm/bytecode/module.h",
];

/// Functions, as patterns.
const FUNCTIONS: &[&str] = &[
    "iree_allocator_(free|libc_ctl)",
    "iree_async_frontier_tracker_(create|release|retain)",
    "iree_async_proactor_pool_(create|options_default|release|retain)",
    "iree_hal_allocator_(allocate_buffer|create_heap|import_buffer|release|retain)",
    "iree_hal_buffer_(allocated_buffer|allowed_access|byte_length|byte_offset|release|retain|subspan)",
    "iree_hal_buffer_view_(buffer|create|element_type|release|retain|retain_ref|shape_dims|shape_rank)",
    "iree_hal_cuda_(device_params|driver_options)_initialize",
    "iree_hal_cuda_driver_create",
    "iree_hal_device_(allocator|profiling_begin|profiling_end|profiling_flush|query_i64|queue_barrier|release|retain)",
    "iree_hal_device_transfer_(d2d|d2h|h2d)",
    "iree_hal_device_group_(create_from_device|release|retain)",
    "iree_hal_driver_(create_device_by_id|dump_device_info|query_available_devices|release|retain)",
    "iree_hal_(embedded_elf|system_library)_loader_create",
    "iree_hal_executable_loader_(release|retain)",
    "iree_hal_module_(create|debug_sink_null|device_policy_default|register_all_types)",
    "iree_hal_profile_sink_(release|retain)",
    "iree_hal_(sync|task)_device_(create|params_initialize)",
    "iree_hal_semaphore_(create|query|release|retain|signal|wait)",
    "iree_hal_vulkan_driver_(create|options_initialize)",
    "iree_status_(consume_code|free|to_string)",
    "iree_string_builder_(deinitialize|initialize)",
    "iree_task_executor_(create|options_initialize|release|retain|worker_count)",
    "iree_task_topology_(deinitialize|get_group|group_capacity|group_count)",
    "iree_task_topology_initialize_from_(group_count|logical_cpu_set|physical_cores)",
    "iree_vm_bytecode_module_create",
    "iree_vm_context_(create_with_modules|release|retain)",
    "iree_vm_function_(call_count_arguments_and_results|signature)",
    "iree_vm_instance_(create|release|retain)",
    "iree_vm_invoke",
    "iree_vm_list_(create|get_buffer_view_retain|push_ref_move|release|retain|size)",
    "iree_vm_module_(lookup_function_by_name|release|retain)",
    "iree_vm_ref_release",
];

/// Types that no function above names, as patterns.
const TYPES: &[&str] = &[
    "iree_allocator_command_e",
    "iree_hal_buffer_usage_bits_t",
    "iree_hal_device_profiling_data_family_bits_t",
    "iree_hal_element_types_t",
    "iree_hal_encoding_types_t",
    "iree_hal_memory_access_bits_t",
    "iree_hal_memory_type_bits_t",
    "iree_hal_profile_(chunk_metadata|clock_correlation_record|dispatch_event|executable_function_record)_t",
    "iree_hal_profile_(host_execution_event|sink|sink_vtable)_t",
    "iree_hal_profile_queue_event_type_e",
    "iree_hal_vulkan_(device_flag|feature)_bits_t",
    "iree_status_code_e",
    "iree_task_topology_(distribution|performance_level)_e",
    "iree_timeout_type_e",
    "iree_vm_bytecode_module_flags_e",
    "iree_vm_function_linkage_e",
];
const CONSTANTS: &[&str] = &["IREE_VM_TYPE_CAPACITY_DEFAULT"];
/// Types that Rust passes on at most: written and read on the C side.
const OPAQUE: &[&str] = &[
    "iree_async_(event|file|frontier|notification|operation|proactor|region|relay|semaphore|slab|socket)_t",
    "iree_hal_executable_loader_t",
    "iree_thread_affinity_t",
    "iree_vm_(module|type_def)_t",
];

/// The text of `bindings.rs`.
pub(super) fn generate(root: &Path, names: &BTreeSet<String>) -> Result<String> {
    let source: String = HEADERS.iter().map(|header| format!("#include \"{header}\"\n")).collect();
    let sources = root.join("iree");
    let includes = [
        root.join("generated/include"),
        sources.join("runtime/src"),
        sources.join("third_party/flatcc/include"),
    ];
    let mut builder = Builder::default()
        .header_contents("iree.h", &source)
        .clang_args(includes.iter().map(|include| format!("-I{}", include.display())))
        .clang_args(["-DNDEBUG", "-DIREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl"])
        .default_enum_style(EnumVariation::Consts)
        .derive_default(true)
        .size_t_is_usize(true)
        .generate_comments(false)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .sort_semantically(true)
        .formatter(Formatter::Prettyplease)
        .rust_target(RustTarget::stable(88, 0).map_err(|error| anyhow::anyhow!("{error}"))?)
        .rust_edition(RustEdition::Edition2024)
        .use_core();
    for pattern in FUNCTIONS {
        builder = builder.allowlist_function(pattern);
    }
    // What is opaque is not followed to, so it is named.
    for pattern in TYPES.iter().chain(OPAQUE) {
        builder = builder.allowlist_type(pattern);
    }
    for pattern in CONSTANTS {
        builder = builder.allowlist_var(pattern);
    }
    for pattern in OPAQUE {
        builder = builder.opaque_type(pattern);
    }
    let text = builder.generate().context("bindgen")?.to_string();
    // Each check of a layout in one line.
    let text = text.replace("    [\n        \"", "    [\"").replace("\",\n    ][", "\"][");
    Ok(link_names(&text, names))
}

/// Gives functions their names in the archive, which differ from those in a distribution of IREE.
fn link_names(bindings: &str, names: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for line in bindings.lines() {
        let function = line.trim_start().strip_prefix("pub fn ").and_then(|rest| rest.split_once('('));
        if let Some((name, _)) = function.filter(|(name, _)| names.contains(*name)) {
            text.push_str(&format!(
                "    #[cfg_attr(not(feature = \"dist\"), link_name = \"{PREFIX}{name}\")]\n"
            ));
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_functions_are_renamed_and_methods_are_not() {
        let names = BTreeSet::from(["iree_a".to_owned()]);
        let text = link_names("    pub fn iree_a(\n    pub fn iree_b();\n    pub fn iree_a_b();", &names);
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "#[cfg_attr(not(feature = \"dist\"), link_name = \"mlxcel_iree_a\")]",
                "pub fn iree_a(",
                "pub fn iree_b();",
                "pub fn iree_a_b();"
            ]
        );
    }
}
