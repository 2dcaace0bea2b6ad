//! Where IREE's runtime comes from.
//!
//! With the feature `vendored` it is built by the crate `eerie-sys` from the sources in it, and there is nothing to do
//! here. With `dist` it is linked from the distribution that `IREE_DIST` names, which goes before where both are on.
//! What a device driver needs to be built is asked for first, in words that say what to install.
#![allow(clippy::print_stdout, reason = "how a build script talks to cargo")]

mod cuda;
mod dist;
mod version;

use std::env;
use std::process::ExitCode;

/// The release whose programs this crate compiles and whose interface it is written against.
const IREE_VERSION: &str = "3.13.0";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let macos = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos");
    if has_feature("VULKAN") && macos {
        return Err("the feature `vulkan` is not for macOS, which has no Vulkan of its own".to_owned());
    }
    if has_feature("DIST") {
        return dist::link();
    }
    if !has_feature("VENDORED") {
        return Err("mlxcel-iree needs IREE's runtime: turn on its feature `vendored` (the default), which builds it, or \
                    `dist`, which links the distribution that IREE_DIST names"
            .to_owned());
    }
    if has_feature("CUDA") { cuda::find_toolkit() } else { Ok(()) }
}

/// Whether a feature is on, by cargo's word at run time: so `cargo xtask test --only dist` can try combinations.
fn has_feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}
