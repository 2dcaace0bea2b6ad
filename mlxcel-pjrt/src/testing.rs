//! What tests have in common.

use std::path::{Path, PathBuf};

use mlxcel_core::ModelSource;

use crate::{PLUGIN_VARIABLE, PjrtBackend};

/// The engine on the plugin that `cargo xtask setup --pjrt` provides, or another that the environment names,
/// if there is one. Continuous integration provides it where it is published for the machine.
pub(crate) fn engine() -> Option<PjrtBackend> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let provided = workspace.join(".toolchain/pjrt/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
    let engine = match std::env::var_os(PLUGIN_VARIABLE) {
        None => PjrtBackend::new().with_plugin(provided),
        Some(_) => PjrtBackend::new(),
    };
    // Fixtures are small: what takes time is compiling for them.
    let engine = engine
        .with_cache_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/pjrt-cache"))
        .with_compile_option("xla_backend_optimization_level", 0);
    let is_there = engine.plugin_path().is_ok_and(|path| path.is_file());
    let is_published = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let is_needed = is_published && std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(is_there || !is_needed, "`cargo xtask setup --pjrt` provides a plugin");
    is_there.then_some(engine)
}

/// The folder of a fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// The checkpoint of a fixture.
pub(crate) fn source(name: &str) -> ModelSource {
    ModelSource::Folder(fixture(name))
}
