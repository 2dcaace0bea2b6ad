//! GPU backends.

mod detect;

use mlxcel_core::Result;
use mlxcel_stablehlo::ElementType::{self, BF16, F16, F32};

use super::{CompileBackend, expect_driver, mismatch};
use crate::target::{CompileTarget, DeviceDescription, HOST, unresolved};

/// A backend for accelerators, as data.
#[derive(Debug)]
pub(super) struct Gpu {
    name: &'static str,
    /// The value of `--iree-hal-target-device`.
    device: &'static str,
    /// The flag that takes the architecture.
    architecture: &'static str,
    architectures: &'static [&'static str],
    /// The flag that takes features, if any, and their prefixes or names.
    features: Option<(&'static str, &'static [&'static str])>,
    /// Flags for every target.
    more: &'static [&'static str],
    elements: &'static [ElementType],
    drivers: &'static [&'static str],
    detect: fn() -> Result<String>,
    /// Whether code for the first architecture runs on a device of the second.
    runs_on: fn(&str, &str) -> bool,
    /// The newest known architecture whose code runs on one that is not known.
    serves: fn(&str) -> Option<String>,
}

/// NVIDIA, through LLVM's NVPTX: programs embed PTX, which drivers also compile for newer devices.
pub(super) const CUDA: Gpu = Gpu {
    name: "cuda",
    device: "cuda",
    architecture: "--iree-cuda-target",
    architectures: &[
        "sm_60", "sm_61", "sm_62", "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_120",
        "sm_121", "pascal", "volta", "turing", "ampere", "ada", "a100", "rtx3070", "rtx3070ti", "rtx3080",
        "rtx3080ti", "rtx3090", "rtx3090ti", "rtx4060", "rtx4070", "rtx4080", "rtx4090",
    ],
    features: Some(("--iree-cuda-target-features", &["ptx"])),
    more: &[],
    elements: &[F32, BF16, F16],
    drivers: &["cuda"],
    detect: detect::cuda,
    runs_on: detect::cuda_runs_on,
    serves: |architecture| detect::newest_for(architecture.strip_prefix("sm_")?),
};

/// AMD, through LLVM's AMDGPU.
pub(super) const ROCM: Gpu = Gpu {
    name: "rocm",
    device: "hip",
    architecture: "--iree-rocm-target",
    architectures: &[
        "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1103", "gfx1150", "gfx1151",
        "gfx1200", "gfx1201", "gfx1250", "cdna1", "cdna2", "mi100", "mi210", "mi250", "mi250x", "mi300a",
        "mi300x", "mi308x", "mi325x", "mi350x", "mi355x", "r9700", "rx7700xt", "rx7800xt", "rx7900xt",
        "rx7900xtx", "rx9060xt", "rx9070", "rx9070xt", "v710", "w7700", "w7800", "w7900", "phoenix",
        "strix-point", "strix-halo",
    ],
    features: Some((
        "--iree-rocm-target-features",
        &["sramecc", "xnack", "wavefrontsize32", "wavefrontsize64"],
    )),
    more: &[],
    elements: &[F32, BF16, F16],
    drivers: &["hip"],
    detect: detect::rocm,
    runs_on: detect::rocm_runs_on,
    serves: |_| None,
};

/// Apple's, through SPIR-V and the Metal shading language. Programs embed the source, which the driver
/// compiles: Apple's compiler exists on no other system.
pub(super) const METAL: Gpu = Gpu {
    name: "metal-spirv",
    device: "metal",
    architecture: "--iree-metal-target-platform",
    architectures: &["macos", "ios", "ios-simulator"],
    features: None,
    more: &["--iree-metal-compile-to-metallib=false"],
    elements: &[F32],
    drivers: &["metal"],
    detect: detect::metal,
    runs_on: |code, device| code == device,
    serves: |_| None,
};

impl Gpu {
    fn is_feature(&self, feature: &str) -> bool {
        let known = self.features.map_or(&[][..], |(_, known)| known);
        known.iter().any(|known| match feature.strip_prefix(known) {
            Some("") => *known != "ptx",
            Some(version) => *known == "ptx" && version.bytes().all(|digit| digit.is_ascii_digit()),
            None => false,
        })
    }
}

impl CompileBackend for Gpu {
    fn name(&self) -> &str {
        self.name
    }

    fn known_architectures(&self) -> Vec<String> {
        std::iter::once(HOST).chain(self.architectures.iter().copied()).map(str::to_owned).collect()
    }

    fn detect_target(&self) -> Result<CompileTarget> {
        CompileTarget::new(self.name, &(self.detect)()?)
    }

    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget> {
        if let Some((feature, _)) = target.features().find(|(feature, _)| !self.is_feature(feature)) {
            let known = self.features.map_or("none".to_owned(), |(_, known)| known.join(", "));
            let message = "the compiler's code for these devices does not depend on this feature";
            return Err(unresolved(message, target)
                .with_context("known", known)
                .with_context("feature", feature));
        }
        if target.architecture() == HOST {
            return target
                .features()
                .try_fold(self.detect_target()?, |found, (name, on)| found.with_feature(name, on));
        }
        if !self.architectures.contains(&target.architecture()) {
            let message = "the compiler does not know this architecture";
            let error = unresolved(message, target).with_context("known", self.architectures.join(", "));
            return Err(match (self.serves)(target.architecture()) {
                Some(known) => error.with_context("runs on it", format!("{}:{known}", self.name)),
                None => error,
            });
        }
        Ok(target.clone())
    }

    fn options(&self, target: &CompileTarget) -> Result<Vec<String>> {
        let mut options = vec![
            format!("--iree-hal-target-device={}", self.device),
            format!("{}={}", self.architecture, target.architecture()),
        ];
        if let (Some((flag, _)), Some(features)) = (self.features, target.feature_flags()) {
            options.push(format!("{flag}={features}"));
        }
        options.extend(self.more.iter().map(|&flag| flag.to_owned()));
        Ok(options)
    }

    fn element_types(&self, _target: &CompileTarget) -> Vec<ElementType> {
        self.elements.to_vec()
    }

    fn drivers(&self) -> &[&str] {
        self.drivers
    }

    fn check_device(&self, target: &CompileTarget, device: &DeviceDescription) -> Result<()> {
        expect_driver(self.drivers, target, device)?;
        match &device.architecture {
            Some(architecture) if !(self.runs_on)(target.architecture(), architecture) => {
                Err(mismatch("the program is compiled for another device", target, device))
            }
            _ => Ok(()),
        }
    }
}
