//! This machine's accelerators.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{self, on_path};

/// The time limit of NVIDIA's tool, which wakes sleeping devices.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the kernel's AMD driver lists its devices.
const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

/// The architecture of this machine's accelerator for devices of `driver`; of several, that of the least
/// capable NVIDIA device or the first AMD device; of Metal the platform. None if it cannot be detected.
pub(crate) fn accelerator_of(driver: &str) -> Option<String> {
    match driver {
        "cuda" => oldest_of(&compute_capabilities()?).map(|capability| format!("sm_{capability}")),
        "hip" => chip_under(Path::new(NODES)),
        "metal" => {
            let system = Some(std::env::consts::OS).filter(|system| matches!(*system, "macos" | "ios"));
            system.map(str::to_owned)
        }
        _ => None,
    }
}

/// The compute capabilities of this machine's NVIDIA devices, one per line.
pub(crate) fn compute_capabilities() -> Option<String> {
    let mut command = Command::new(on_path("nvidia-smi")?);
    command.args(["--query-gpu=compute_cap", "--format=csv,noheader"]);
    let finished = process::run(&mut command, None, Some(PATIENCE)).ok()?;
    finished.status.success().then_some(finished.stdout)
}

/// The least of the listed compute capabilities, times ten.
pub(crate) fn oldest_of(capabilities: &str) -> Option<u32> {
    let devices: Vec<u32> =
        capabilities.lines().map(|line| line.trim().replace('.', "").parse().ok()).collect::<Option<_>>()?;
    devices.into_iter().min()
}

/// The chip of the first node that has one, by the properties in the kernel's folder `nodes`.
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
fn chip_under(nodes: &Path) -> Option<String> {
    let mut nodes: Vec<(u32, String)> = fs::read_dir(nodes)
        .ok()?
        .flatten()
        .filter_map(|node| {
            let number = node.file_name().to_str()?.parse().ok()?;
            let properties = fs::read_to_string(node.path().join("properties")).ok()?;
            let version = properties.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?;
            let version: u32 = version.trim().parse().ok()?;
            // CPUs are nodes too, of version zero.
            let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
            (version > 0).then(|| (number, format!("gfx{major}{minor:x}{stepping:x}")))
        })
        .collect();
    nodes.sort();
    nodes.into_iter().next().map(|(_, chip)| chip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_capability_is_that_of_all_devices() {
        assert_eq!((oldest_of("9.0\n8.6\n"), oldest_of("[N/A]")), (Some(86), None));
    }

    #[test]
    fn amd_devices_are_identified_by_the_kernels_version_numbers() {
        let nodes = tempfile::tempdir().unwrap();
        let node = |number: u32, version: u32| {
            let folder = nodes.path().join(number.to_string());
            fs::create_dir(&folder).unwrap();
            let text = format!("simd_count 4\ngfx_target_version {version}\nvendor_id 4098\n");
            fs::write(folder.join("properties"), text).unwrap();
        };
        assert_eq!(chip_under(nodes.path()), None);
        node(0, 0);
        node(10, 110_001);
        assert_eq!(chip_under(nodes.path()).as_deref(), Some("gfx1101"));
        node(2, 90_402);
        assert_eq!(chip_under(nodes.path()).as_deref(), Some("gfx942"));
        node(1, 90_010);
        assert_eq!(chip_under(nodes.path()).as_deref(), Some("gfx90a"));
    }
}
