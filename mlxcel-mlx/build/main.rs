//! Finds MLX, compiles the bridge to it, and links it so that the program finds it again.
//!
//! docs/adr/0006 says why linking is done as it is.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "that is how a build script speaks")]
#![allow(missing_docs)]

mod link;
mod locate;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::locate::Mlx;

/// The modules of `src/` that hold a cxx bridge.
const BRIDGES: &[&str] = &["src/ffi/bridge.rs", "src/ffi/kernels.rs"];

/// The folders whose `.cc` files are compiled.
const SOURCES: &[&str] = &["cpp", "cpp/kernels", "cpp/primitives"];

fn main() -> ExitCode {
    // docs.rs has no MLX, and documentation needs none.
    if env::var_os("DOCS_RS").is_some() {
        return ExitCode::SUCCESS;
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nmlxcel-mlx: {message}\n");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    println!("cargo:rerun-if-changed=build");
    // Another environment of Python changes the latter two.
    for variable in [locate::VARIABLE, link::VARIABLE, "PATH", "VIRTUAL_ENV"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let family = env::var("CARGO_CFG_TARGET_FAMILY").unwrap_or_default();
    if family != "unix" {
        return Err(
            "MLX is used on macOS and Linux; the engines `portable` and `iree` run elsewhere".to_owned()
        );
    }
    let mlx = Mlx::find(env::var_os(locate::VARIABLE), locate::python_packages)?;
    println!("cargo:rerun-if-changed={}", mlx.version_header().display());
    println!("cargo:rerun-if-changed={}", mlx.library().display());
    // For the build script of an application that sets a path for its loader.
    println!("cargo:lib_dir={}", mlx.library().parent().unwrap_or(Path::new("/")).display());
    println!("cargo:include={}", mlx.include().display());

    let mut bridge = cxx_build::bridges(BRIDGES);
    bridge.std("c++20").opt_level(3).pic(true).debug(false).warnings(true).extra_warnings(true);
    // As system headers, so that warnings are about our own.
    bridge.flag("-isystem").flag(mlx.include());
    for folder in SOURCES {
        bridge.files(sources(Path::new(folder))?);
    }
    for path in BRIDGES.iter().chain(&["cpp"]) {
        println!("cargo:rerun-if-changed={path}");
    }
    let compiler = bridge.try_get_compiler().map_err(|error| format!("no C++ compiler: {error}"))?;
    bridge.try_compile("mlxcel_mlx_bridge").map_err(|error| format!("compiling the bridge: {error}"))?;
    link::link(&mlx, &compiler.to_command())
}

/// The `.cc` files in a folder, in the order of their names.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("reading {}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "cc") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
