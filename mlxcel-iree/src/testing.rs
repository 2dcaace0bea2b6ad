//! Targets, and the cache of compiled programs, for tests.

use std::path::{Path, PathBuf};

use mlxcel_iree_target::{CompileBackends, ResolvedTarget};

/// What programs of this machine are compiled for.
pub(crate) fn host() -> ResolvedTarget {
    resolved("llvm-cpu:host")
}

/// What a target that is written down means.
pub(crate) fn resolved(target: &str) -> ResolvedTarget {
    CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap()
}

/// Where the tests of all packages keep compiled programs, for tests that a warm cache does not weaken.
pub(crate) fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/iree-cache")
}
