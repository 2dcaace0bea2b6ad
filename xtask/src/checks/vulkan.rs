//! Models on Vulkan, by Mesa's driver that computes on the CPU: `mlxcel-iree/tests/vulkan`.
//!
//! Continuous integration installs the driver. Elsewhere the check says which packages it is in.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::missing::left_out;
use super::test_programs::NIGHTLY;
use super::{Done, in_ci};
use crate::process;
use crate::workspace::Workspace;

/// Where Vulkan's loader looks for drivers.
const FOLDERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// Debian's packages of the driver and the loader.
const PACKAGES: [&str; 2] = ["mesa-vulkan-drivers", "libvulkan1"];

/// Runs the tests, those of a night with `all`.
pub(super) fn check(workspace: &Workspace, all: bool) -> Result<Done> {
    if !cfg!(target_os = "linux") {
        return Ok(Done::Unchecked("the software driver is tested on Linux".to_owned()));
    }
    if driver().is_none() && in_ci() {
        install()?;
    }
    let Some(driver) = driver() else {
        return left_out(format!("there is no software driver: apt-get install {}", PACKAGES.join(" ")));
    };
    let test = [
        "test", "--locked", "-p", "mlxcel-iree", "--features", "vulkan", "--test", "vulkan", "--",
        "--nocapture",
    ];
    // The software driver, on machines with a GPU too.
    let mut command = workspace.cargo(&test);
    command.env("VK_DRIVER_FILES", &driver).env("VK_ICD_FILENAMES", &driver);
    if !all {
        command.args(["--skip", NIGHTLY]);
    }
    process::run(&mut command)?;
    Ok(Done::Checked("models run on a software driver".to_owned()))
}

/// The description of Mesa's software driver for the loader.
fn driver() -> Option<PathBuf> {
    let files = FOLDERS.iter().filter_map(|folder| Path::new(folder).read_dir().ok()).flatten().flatten();
    let mut found: Vec<_> = files.map(|entry| entry.path()).collect();
    found.retain(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("lvp_icd") && name.ends_with(".json")
    });
    found.sort();
    found.into_iter().next()
}

fn install() -> Result<()> {
    let as_root = |arguments: &[&str]| {
        let mut command = match process::output(Command::new("id").arg("-u")) {
            Ok(user) if user.trim() != "0" => {
                let mut sudo = Command::new("sudo");
                sudo.arg("apt-get");
                sudo
            }
            _ => Command::new("apt-get"),
        };
        process::run(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    as_root(&["update", "--quiet"])?;
    let mut arguments = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    arguments.extend(PACKAGES);
    as_root(&arguments).context("installing a software driver for Vulkan")
}
