//! GPUs of any vendor, through SPIR-V and Vulkan.
//!
//! A device runs code for the architecture [`BY_PROPERTIES`] with the features that say what it has: that is
//! the target derived from a device. Other architectures are the compiler's descriptions of products, for
//! code that is written for machines elsewhere. In both cases it is known which subgroup sizes and
//! capabilities the code relies on, and a device without them is refused: the driver would run such code and
//! return wrong numbers.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use mlxcel_core::{Error, Result};
use mlxcel_stablehlo::ElementType;

use super::{CompileBackend, expect_driver, mismatch};
use crate::target::{
    CompileTarget, DeviceDescription, HOST, MIN_WORKGROUP_THREADS, VulkanCapability, VulkanProperties,
    unresolved,
};

const NAME: &str = "vulkan-spirv";
const DRIVER: &str = "vulkan";

/// The architecture of code for devices with the properties that are its features.
const BY_PROPERTIES: &str = "spirv";
/// The features of [`BY_PROPERTIES`] that have a number: the subgroup size and the maximum number of threads
/// of a workgroup.
const SUBGROUP: &str = "subgroup";
const THREADS: &str = "threads";
/// Without reads of single narrow values the compiler loads more bytes than they have, or fails; without
/// arithmetic in these widths it fails.
const REQUIRED: [VulkanCapability; 5] = [
    VulkanCapability::Float16,
    VulkanCapability::Int8,
    VulkanCapability::Int16,
    VulkanCapability::Storage8,
    VulkanCapability::Storage16,
];
/// The shared memory of a workgroup that every device has (`maxComputeSharedMemorySize`), in bytes. A
/// device's own is not reported.
const SHARED_MEMORY: u32 = 16 * 1024;

/// A maker of GPUs for whose products the compiler has good shapes of kernels: products of matrices go
/// through shared memory.
#[derive(Debug, PartialEq, Eq)]
struct Maker {
    /// The feature of [`BY_PROPERTIES`].
    feature: &'static str,
    /// Its number in PCI's list.
    id: u32,
    /// One of the compiler's architectures of it; what differs between them are the other features.
    architecture: &'static str,
    /// The shared memory that all its products with Vulkan 1.3 have.
    shared_memory: u32,
}

const MAKERS: &[Maker] = &[
    Maker { feature: "nvidia", id: 0x10de, architecture: "sm_80", shared_memory: 48 * 1024 },
    Maker { feature: "amd", id: 0x1002, architecture: "gfx1100", shared_memory: 32 * 1024 },
];
/// The most threads of a workgroup that code is compiled for; more gain nothing.
const MAX_THREADS: u32 = 1024;

/// What code relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirements {
    /// One of these sizes, as the compiler chose; none if code does not depend on it.
    subgroup_sizes: Vec<u32>,
    capabilities: BTreeSet<VulkanCapability>,
    threads: u32,
    /// Whose products it was shaped for; it relies on their shared memory.
    maker: Option<&'static Maker>,
}

/// The compiler's descriptions of products that rely on the same.
struct Products {
    names: &'static [&'static str],
    subgroup_sizes: &'static [u32],
    lacking: &'static [VulkanCapability],
    threads: u32,
}

/// What most of them rely on.
const USUAL: Products = Products { names: &[], subgroup_sizes: &[32], lacking: &[], threads: 1024 };

/// As the compiler prints them; tests of `mlxcel-iree-compile` compare.
const PRODUCTS: &[Products] = &[
    Products { names: &["ampere", "ada", "turing", "a100", "rtx3090", "rtx4090", "sm_80", "sm_89"], ..USUAL },
    Products { names: &["pascal", "volta"], lacking: &[VulkanCapability::DotProduct], ..USUAL },
    Products {
        names: &["rdna2", "rdna3", "rdna4", "gfx1100", "rx7900xtx", "strix-halo"],
        subgroup_sizes: &[32, 64],
        ..USUAL
    },
    Products {
        names: &["rdna1"],
        subgroup_sizes: &[32, 64],
        lacking: &[VulkanCapability::DotProduct],
        ..USUAL
    },
    Products { names: &["gfx942", "cdna3", "mi300x"], subgroup_sizes: &[64], ..USUAL },
    Products {
        names: &[
            "valhall", "valhall1", "valhall2", "valhall3", "valhall4", "mali-g57", "mali-g77", "mali-g78",
            "mali-g310", "mali-g510", "mali-g615", "mali-g710", "mali-g715",
        ],
        subgroup_sizes: &[16],
        lacking: &[VulkanCapability::Float64, VulkanCapability::Int64],
        threads: 512,
    },
    Products { names: &["arm5gen", "mali-g720", "mali-g725", "mali-g1"], subgroup_sizes: &[16], ..USUAL },
    Products { names: &["llvmpipe"], subgroup_sizes: &[8], ..USUAL },
];

/// Architectures that the compiler knows and describes without single loads of 8 or 16 bits.
const MISCOMPILED: [&str; 3] = ["vp_android_baseline_2022", "videocore_vii", "adreno"];

/// The backend.
#[derive(Debug)]
pub(super) struct Vulkan;

/// The number in the feature `name` of a target.
fn number(feature: &str, name: &str) -> Option<u32> {
    let digits = feature.strip_prefix(name)?;
    let plain = digits.bytes().all(|digit| digit.is_ascii_digit()) && !digits.starts_with('0');
    plain.then(|| digits.parse().ok()).flatten()
}

impl Requirements {
    fn of(target: &CompileTarget) -> Result<Self> {
        if target.architecture() == BY_PROPERTIES {
            return Self::by_properties(target);
        }
        let products = PRODUCTS.iter().find(|products| products.names.contains(&target.architecture()));
        let products = products.ok_or_else(|| {
            if MISCOMPILED.contains(&target.architecture()) {
                let message = "the compiler describes this architecture without reads of single 8-bit or 16-bit values, and \
                               compiles reads of bfloat16, float16 and bytes for it to wrong ones; use the target of the device";
                return Error::unsupported("resolve a compile target", message).with_context("target", target);
            }
            unresolved("the compiler does not know this architecture", target)
                .with_context("known", architectures().collect::<Vec<_>>().join(", "))
        })?;
        if let Some((feature, _)) = target.features().next() {
            let message = "the compiler's description of this architecture has no features";
            return Err(unresolved(message, target)
                .with_context("feature", feature)
                .with_context("known", "none"));
        }
        let capabilities =
            VulkanCapability::ALL.into_iter().filter(|capability| !products.lacking.contains(capability));
        Ok(Self {
            subgroup_sizes: products.subgroup_sizes.to_vec(),
            capabilities: capabilities.collect(),
            threads: products.threads,
            maker: None,
        })
    }

    fn by_properties(target: &CompileTarget) -> Result<Self> {
        let mut requirements = Self {
            subgroup_sizes: Vec::new(),
            capabilities: BTreeSet::new(),
            threads: MIN_WORKGROUP_THREADS,
            maker: None,
        };
        for (feature, enabled) in target.features() {
            let capability =
                VulkanCapability::ALL.into_iter().find(|capability| capability.as_str() == feature);
            let maker = MAKERS.iter().find(|maker| maker.feature == feature);
            match (capability, number(feature, SUBGROUP), number(feature, THREADS)) {
                _ if !enabled => {
                    let message = "a capability that a target does not list is not used already";
                    return Err(unresolved(message, target).with_context("feature", feature));
                }
                _ if requirements.maker.is_none() && maker.is_some() => requirements.maker = maker,
                (Some(capability), ..) => drop(requirements.capabilities.insert(capability)),
                (_, Some(size), _) if size.is_power_of_two() && size <= 128 => {
                    requirements.subgroup_sizes.push(size);
                }
                (.., Some(threads)) if (MIN_WORKGROUP_THREADS..=MAX_THREADS).contains(&threads) => {
                    requirements.threads = threads;
                }
                _ => {
                    let known: Vec<_> = VulkanCapability::ALL.map(VulkanCapability::as_str).into();
                    let makers: Vec<_> = MAKERS.iter().map(|maker| maker.feature).collect();
                    let known = format!(
                        "{}, {SUBGROUP}N, {THREADS}N, one of {}",
                        known.join(", "),
                        makers.join(", ")
                    );
                    return Err(unresolved("Vulkan devices have no such property", target)
                        .with_context("feature", feature)
                        .with_context("known", known));
                }
            }
        }
        if requirements.subgroup_sizes.len() > 1 {
            return Err(unresolved("code is compiled for one subgroup size", target));
        }
        let missing: Vec<&str> = REQUIRED
            .iter()
            .filter(|capability| !requirements.capabilities.contains(capability))
            .map(|capability| capability.as_str())
            .collect();
        if missing.is_empty() {
            return Ok(requirements);
        }
        let message = "code for devices without reads of single 8-bit and 16-bit values is not supported: the compiler gets it wrong";
        Err(Error::unsupported("resolve a compile target", message)
            .with_context("target", target)
            .with_context("missing", missing.join(", ")))
    }

    /// What of this `device` does not have.
    fn missing_in(&self, device: &VulkanProperties) -> Vec<String> {
        let capabilities = self.capabilities.difference(&device.capabilities).map(ToString::to_string);
        let mut missing: Vec<String> = capabilities.collect();
        // The device chooses the size where its minimum and maximum differ, and code relies on one.
        let fits = |size: &u32| device.subgroup_sizes == (*size, *size) && device.subgroup_size == *size;
        if !self.subgroup_sizes.is_empty() && !self.subgroup_sizes.iter().any(fits) {
            let sizes: Vec<_> = self.subgroup_sizes.iter().map(u32::to_string).collect();
            let (least, most) = device.subgroup_sizes;
            missing.push(format!(
                "subgroups of {} (the device's have {least} to {most}, {} by default)",
                sizes.join(" or "),
                device.subgroup_size
            ));
        }
        if let Some(maker) = self.maker.filter(|maker| maker.id != device.maker) {
            missing.push(format!("a GPU of {}", maker.feature));
        }
        if self.threads > device.workgroup_threads {
            let (threads, most) = (self.threads, device.workgroup_threads);
            missing.push(format!("workgroups of {threads} threads (the device's have at most {most})"));
        }
        missing
    }

    /// Whether code reaches buffers by their addresses (which Vulkan 1.3 has everywhere) instead of through
    /// descriptors: then the commands of a program are recorded once, and not in every call. An address is an
    /// integer of 64 bits.
    fn by_address(&self) -> bool {
        self.capabilities.contains(&VulkanCapability::Int64)
    }

    /// The compiler's description of a device with exactly this.
    fn description(&self) -> String {
        let has = |capability| self.capabilities.contains(&capability);
        let listed = |all: &[(bool, &str)]| {
            all.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect::<Vec<_>>().join("|")
        };
        let compute = listed(&[
            (has(VulkanCapability::Float64), "fp64"),
            (true, "fp32"),
            (has(VulkanCapability::Float16), "fp16"),
            (has(VulkanCapability::Int64), "int64"),
            (true, "int32"),
            (has(VulkanCapability::Int16), "int16"),
            (has(VulkanCapability::Int8), "int8"),
        ]);
        let storage = listed(&[
            (true, "b64"),
            (true, "b32"),
            (has(VulkanCapability::Storage16), "b16"),
            (has(VulkanCapability::Storage8), "b8"),
        ]);
        let subgroups = if self.subgroup_sizes.is_empty() { "none" } else { "shuffle|arithmetic" };
        let dot = if has(VulkanCapability::DotProduct) { " dot = dp4xi8toi32," } else { "" };
        // Without subgroup operations the size only shapes loops, and how much shared memory they take.
        let size = self.subgroup_sizes.first().copied().unwrap_or(8);
        let threads = self.threads;
        let architecture = self.maker.map_or("", |maker| maker.architecture);
        let shared_memory = self.maker.map_or(SHARED_MEMORY, |maker| maker.shared_memory);
        let addresses = if self.by_address() {
            ",cap:Int64,cap:PhysicalStorageBufferAddresses,ext:SPV_KHR_physical_storage_buffer"
        } else {
            ""
        };
        format!(
            "#iree_gpu.target<arch = \"{architecture}\", features = \"spirv:v1.5,cap:Shader{addresses}\", wgp = <compute = {compute}, storage = {storage}, \
             subgroup = {subgroups},{dot} subgroup_size_choices = [{size}], \
             max_workgroup_sizes = [{threads}, {threads}, 64], max_thread_count_per_workgroup = {threads}, \
             max_workgroup_memory_bytes = {shared_memory}, max_workgroup_counts = [65535, 65535, 65535]>>"
        )
    }
}

/// The names of architectures.
fn architectures() -> impl Iterator<Item = &'static str> {
    std::iter::once(BY_PROPERTIES).chain(PRODUCTS.iter().flat_map(|products| products.names.iter().copied()))
}

impl CompileBackend for Vulkan {
    fn name(&self) -> &str {
        NAME
    }

    fn known_architectures(&self) -> Vec<String> {
        PRODUCTS.iter().flat_map(|products| products.names).map(|&name| name.to_owned()).collect()
    }

    fn detect_target(&self) -> Result<CompileTarget> {
        let message = "what a Vulkan device runs is known once it is open: name the target, which the list of devices has";
        Err(Error::unsupported("detect the compile target of this machine", message)
            .with_context("name one, such as", "vulkan-spirv:ampere"))
    }

    fn target_of(&self, device: &DeviceDescription) -> Result<CompileTarget> {
        let Some(properties) = &device.vulkan else { return self.detect_target() };
        let mut target = CompileTarget::new(NAME, BY_PROPERTIES)?;
        for capability in &properties.capabilities {
            target = target.with_feature(capability.as_str(), true)?;
        }
        // If the driver chooses the size, code has to do without subgroup operations. It then sums through
        // shared memory, of which larger workgroups take more than every device has.
        let (least, most) = properties.subgroup_sizes;
        let is_fixed = least == most && most == properties.subgroup_size;
        if is_fixed {
            target = target.with_feature(&format!("{SUBGROUP}{most}"), true)?;
        }
        let threads = properties.workgroup_threads.min(MAX_THREADS);
        if is_fixed && threads > MIN_WORKGROUP_THREADS {
            target = target.with_feature(&format!("{THREADS}{threads}"), true)?;
        }
        if let Some(maker) = MAKERS.iter().find(|maker| maker.id == properties.maker) {
            target = target.with_feature(maker.feature, true)?;
        }
        self.resolve(&target)
    }

    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget> {
        if target.architecture() == HOST {
            return self.detect_target();
        }
        Requirements::of(target)?;
        Ok(target.clone())
    }

    fn options(&self, target: &CompileTarget) -> Result<Vec<String>> {
        let requirements = Requirements::of(target)?;
        let (abi, format) = match requirements.by_address() {
            true => ("bda", "vulkan-spirv-bda-v1"),
            false => ("descriptors", "vulkan-spirv-fb"),
        };
        if target.architecture() != BY_PROPERTIES {
            return Ok(vec![
                format!("--iree-hal-target-device={DRIVER}"),
                format!("--iree-vulkan-target={}", target.architecture()),
                format!("--iree-vulkan-dispatch-abi={abi}"),
            ]);
        }
        let description = requirements.description();
        Ok(vec![format!(
            "--iree-hal-target-device=device=#hal.device.target<\"{DRIVER}\", [#hal.executable.target<\"{NAME}\", \
             \"{format}\", {{iree_codegen.target_info = {description}}}>]> : !hal.device"
        )])
    }

    fn element_types(&self, _target: &CompileTarget) -> Vec<ElementType> {
        vec![ElementType::F32]
    }

    fn drivers(&self) -> &[&str] {
        &[DRIVER]
    }

    fn check_device(&self, target: &CompileTarget, device: &DeviceDescription) -> Result<()> {
        expect_driver(self.drivers(), target, device)?;
        let missing = match &device.vulkan {
            Some(properties) => Requirements::of(target)?.missing_in(properties),
            None => vec!["the device's properties".to_owned()],
        };
        if missing.is_empty() {
            return Ok(());
        }
        let message = "the device lacks what the program relies on, and would compute wrong numbers";
        Err(mismatch(message, target, device).with_context("missing", missing.join(", ")))
    }
}
