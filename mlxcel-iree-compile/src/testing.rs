//! Targets, for tests.

use mlxcel_iree_target::{CompileBackends, ResolvedTarget};

/// What programs of this machine are compiled for.
pub(crate) fn host() -> ResolvedTarget {
    resolved("llvm-cpu:host")
}

/// What a target that is written down means.
pub(crate) fn resolved(target: &str) -> ResolvedTarget {
    CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap()
}
