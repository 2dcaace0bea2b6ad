//! Vulkan devices, as far as code for them depends on them.

use std::collections::BTreeSet;

mlxcel_core::named! {
    /// An optional capability of Vulkan devices that generated code uses. Its name is the feature of a target
    /// that says that code uses it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum VulkanCapability {
        /// Integer dot products (`shaderIntegerDotProduct`).
        DotProduct = "dot-product",
        /// Arithmetic in 16-bit floats (`shaderFloat16`).
        Float16 = "float16",
        /// Arithmetic in 64-bit floats (`shaderFloat64`).
        Float64 = "float64",
        /// Arithmetic in 8-bit integers (`shaderInt8`).
        Int8 = "int8",
        /// Arithmetic in 16-bit integers (`shaderInt16`).
        Int16 = "int16",
        /// Arithmetic in 64-bit integers (`shaderInt64`).
        Int64 = "int64",
        /// Reads and writes of single 8-bit values (`storageBuffer8BitAccess`).
        Storage8 = "storage8",
        /// Reads and writes of single 16-bit values (`storageBuffer16BitAccess`).
        Storage16 = "storage16",
    }
}

/// The properties of a Vulkan device that determine which code it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VulkanProperties {
    /// The device's name.
    pub name: String,
    /// The number of invocations that run together if a program requires no number.
    pub subgroup_size: u32,
    /// The minimum and maximum number of such invocations; they differ if the driver chooses.
    pub subgroup_sizes: (u32, u32),
    /// The maximum number of invocations of a workgroup.
    pub workgroup_threads: u32,
    /// The number of its maker in PCI's list; 0 if it is not known.
    pub maker: u32,
    /// Optional capabilities.
    pub capabilities: BTreeSet<VulkanCapability>,
}

impl VulkanProperties {
    /// A device with these properties and one subgroup size, and with Vulkan's minimum of threads.
    pub fn new(
        name: impl Into<String>,
        subgroup_size: u32,
        capabilities: impl IntoIterator<Item = VulkanCapability>,
    ) -> Self {
        Self {
            name: name.into(),
            subgroup_size,
            subgroup_sizes: (subgroup_size, subgroup_size),
            workgroup_threads: MIN_WORKGROUP_THREADS,
            maker: 0,
            capabilities: capabilities.into_iter().collect(),
        }
    }
}

/// The invocations of a workgroup that every Vulkan device has (`maxComputeWorkGroupInvocations`).
pub(crate) const MIN_WORKGROUP_THREADS: u32 = 128;
