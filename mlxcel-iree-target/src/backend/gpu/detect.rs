//! The targets for this machine's GPU, and which GPUs are compatible.

use mlxcel_core::{Error, Result};

use super::{CUDA, ROCM};
use crate::target::accelerator::{accelerator_of, compute_capabilities, oldest_of};

fn none(message: &'static str, example: &'static str) -> Error {
    Error::unsupported("detect the compile target of this machine", message)
        .with_context("name one, such as", example)
}

/// The newest architecture that the compiler knows and all NVIDIA devices of this machine run.
pub(super) fn cuda() -> Result<String> {
    let missing = |message| none(message, "cuda:sm_80");
    let listed = compute_capabilities()
        .ok_or_else(|| missing("nvidia-smi, which detects NVIDIA devices, does not run here"))?;
    newest_for(&listed).ok_or_else(|| missing("no NVIDIA device of this machine runs code of this compiler"))
}

/// The newest known architecture for devices with these compute capabilities, one per line.
pub(super) fn newest_for(capabilities: &str) -> Option<String> {
    let oldest = oldest_of(capabilities)?;
    let known = CUDA.architectures.iter().filter(|name| name.starts_with("sm_"));
    let newest = known.filter(|name| capability(name) <= oldest).max_by_key(|name| capability(name))?;
    Some((*newest).to_owned())
}

/// The compute capability of an architecture or product, times ten; zero if unknown.
fn capability(name: &str) -> u32 {
    match name {
        "pascal" => 60,
        "volta" => 70,
        "turing" => 75,
        "ampere" | "a100" => 80,
        "ada" => 89,
        _ if name.starts_with("rtx30") => 86,
        _ if name.starts_with("rtx40") => 89,
        _ => name.strip_prefix("sm_").and_then(|number| number.parse().ok()).unwrap_or_default(),
    }
}

/// PTX runs on devices of its own capability and of later ones.
pub(super) fn cuda_runs_on(code: &str, device: &str) -> bool {
    let device = capability(device);
    device == 0 || capability(code) <= device
}

/// The chip of this machine's first AMD device.
pub(super) fn rocm() -> Result<String> {
    let chip = accelerator_of("hip")
        .ok_or_else(|| none("the kernel's AMD driver lists no device", "rocm:gfx942"))?;
    if ROCM.architectures.contains(&chip.as_str()) {
        return Ok(chip);
    }
    Err(none("the compiler does not know this machine's AMD device", "rocm:gfx942")
        .with_context("device", chip))
}

/// Code for a chip runs only on that chip; products are named by their chips.
pub(super) fn rocm_runs_on(code: &str, device: &str) -> bool {
    chip_of(code) == chip_of(device)
}

fn chip_of(name: &str) -> &str {
    match name {
        "cdna1" | "mi100" => "gfx908",
        "cdna2" | "mi210" | "mi250" | "mi250x" => "gfx90a",
        "mi300a" | "mi300x" | "mi308x" | "mi325x" => "gfx942",
        "mi350x" | "mi355x" => "gfx950",
        "rx7900xt" | "rx7900xtx" | "w7800" | "w7900" => "gfx1100",
        "rx7700xt" | "rx7800xt" | "v710" | "w7700" => "gfx1101",
        "phoenix" => "gfx1103",
        "strix-point" => "gfx1150",
        "strix-halo" => "gfx1151",
        "rx9060xt" => "gfx1200",
        "r9700" | "rx9070" | "rx9070xt" => "gfx1201",
        chip => chip,
    }
}

/// The Apple platform of this program.
pub(super) fn metal() -> Result<String> {
    accelerator_of("metal").ok_or_else(|| none("Metal exists only on Apple's systems", "metal-spirv:macos"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_architecture_that_every_device_runs_is_chosen() {
        assert_eq!(newest_for("8.9\n").as_deref(), Some("sm_89"));
        assert_eq!(newest_for("9.0\n8.6\n").as_deref(), Some("sm_86"));
        assert_eq!(newest_for("9.0").as_deref(), Some("sm_89"), "PTX of an older one");
        assert_eq!(newest_for("12.0").as_deref(), Some("sm_120"));
        assert_eq!(newest_for("5.2"), None);
        assert_eq!(newest_for("[N/A]"), None);
        assert_eq!(newest_for(""), None);
    }

    #[test]
    fn ptx_runs_on_later_devices_and_not_on_earlier_ones() {
        assert!(
            cuda_runs_on("sm_89", "sm_90")
                && cuda_runs_on("rtx3090", "sm_86")
                && cuda_runs_on("ada", "rtx4090")
        );
        assert!(!cuda_runs_on("sm_89", "sm_80") && !cuda_runs_on("ada", "a100"));
        assert!(CUDA.architectures.iter().all(|name| capability(name) > 0));
    }

    #[test]
    fn products_are_named_by_their_chips() {
        assert!(rocm_runs_on("mi300x", "gfx942") && !rocm_runs_on("mi300x", "gfx90a"));
        assert!(ROCM.architectures.iter().all(|name| chip_of(name).starts_with("gfx")));
    }
}
