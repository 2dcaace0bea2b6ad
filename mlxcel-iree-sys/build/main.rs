//! Where IREE's runtime comes from.
//!
//! With the feature `vendored` it is compiled from the sources in `iree/`. With `dist` it is linked from the
//! distribution that `IREE_DIST` names, which takes precedence. docs.rs links nothing and gets neither.
#![allow(clippy::print_stdout, reason = "how a build script talks to cargo")]

#[cfg(feature = "vendored")]
mod compile;
#[cfg(feature = "vendored")]
mod cuda;
mod dist;
#[cfg(feature = "vendored")]
mod sources;
#[cfg(feature = "vendored")]
mod vendored;
mod version;

use std::env;
use std::process::ExitCode;

/// The release whose interface the bindings are made from.
const IREE_VERSION: &str = "3.13.0";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        return ExitCode::SUCCESS;
    }
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
    let system = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if has_feature("VULKAN") && system == "macos" {
        return Err("the feature `vulkan` is not for macOS, which has no Vulkan of its own".to_owned());
    }
    if has_feature("DIST") {
        return dist::link();
    }
    if !has_feature("VENDORED") {
        return Err("mlxcel-iree-sys needs IREE's runtime: turn on its feature `vendored` (the default), which compiles it, or \
                    `dist`, which links the distribution that IREE_DIST names"
            .to_owned());
    }
    #[cfg(feature = "vendored")]
    vendored::build(&system)?;
    Ok(())
}

/// Whether a feature is on, by cargo's word at run time: so `cargo xtask test --only dist` can try
/// combinations.
fn has_feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}
