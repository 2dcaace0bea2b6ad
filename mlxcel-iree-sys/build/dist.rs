//! The feature `dist`: IREE's runtime from a distribution, `iree-dist-*.tar.xz` of its releases unpacked, or
//! an installation of IREE's CMake build.

use std::env;
use std::path::{Path, PathBuf};

use crate::{IREE_VERSION, has_feature, version};

const VARIABLE: &str = "IREE_DIST";
/// The archives of every distribution, in the order in which they need each other.
const ARCHIVES: [&str; 2] = ["iree_runtime_unified", "flatcc_parsing"];

/// Links the distribution.
pub(crate) fn link() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let distribution = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from).ok_or_else(|| {
        format!(
            "the feature `dist` of mlxcel-iree links a prebuilt IREE runtime: unpack iree-dist-{IREE_VERSION} of IREE's \
             releases and name the folder in {VARIABLE}, or use the feature `vendored` instead"
        )
    })?;
    let required = ARCHIVES.map(|name| format!("lib/{}", file_name(name)));
    let missing: Vec<_> = required.into_iter().filter(|file| !distribution.join(file).is_file()).collect();
    if !missing.is_empty() {
        return Err(format!(
            "{VARIABLE} names {}, which is no complete IREE distribution: {} missing",
            distribution.display(),
            missing.join(", ")
        ));
    }
    version::check(&distribution)?;
    check_drivers(&distribution)?;
    link_archives(&distribution);
    Ok(())
}

/// The file of a static library.
fn file_name(archive: &str) -> String {
    let msvc = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "msvc");
    if msvc { format!("{archive}.lib") } else { format!("lib{archive}.a") }
}

/// A driver's interface is installed where the driver was built.
fn check_drivers(distribution: &Path) -> Result<(), String> {
    for (feature, driver) in [("CUDA", "cuda"), ("VULKAN", "vulkan")] {
        if has_feature(feature)
            && !distribution.join("include/iree/hal/drivers").join(driver).join("api.h").is_file()
        {
            return Err(format!(
                "the feature `{driver}` of mlxcel-iree is on, and the distribution in {} was built without that driver; \
                 turn the feature off, or use the feature `vendored`, which builds the driver",
                distribution.display()
            ));
        }
    }
    Ok(())
}

fn link_archives(distribution: &Path) {
    let folder = distribution.join("lib");
    println!("cargo::rustc-link-search=native={}", folder.display());
    for archive in ARCHIVES {
        println!("cargo::rerun-if-changed={}", folder.join(file_name(archive)).display());
        println!("cargo::rustc-link-lib=static={archive}");
    }
    match env::var("CARGO_CFG_TARGET_OS").unwrap_or_default().as_str() {
        "macos" => {
            for framework in ["Foundation", "Metal"] {
                println!("cargo::rustc-link-lib=framework={framework}");
            }
        }
        "windows" => {
            for library in ["advapi32", "bcrypt", "dbghelp", "synchronization", "ws2_32"] {
                println!("cargo::rustc-link-lib={library}");
            }
        }
        _ => {
            for library in ["m", "dl", "pthread"] {
                println!("cargo::rustc-link-lib={library}");
            }
        }
    }
}
