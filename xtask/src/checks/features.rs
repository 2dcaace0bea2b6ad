//! Every feature set of every published crate, checked and documented as docs.rs does it: without a native
//! toolchain.
//!
//! `DOCS_RS` makes build scripts look for nothing, so sets with `dist`, `cuda` and `mlx` are checked on every
//! machine. The engines themselves are linked and run by other checks. A target folder of its own keeps what
//! those have built.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use cargo_metadata::Package;

use super::packages::{has_library, is_published};
use crate::process;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let metadata = workspace.metadata()?;
    let target = metadata.target_directory.as_std_path().join("docs-rs");
    let published: Vec<_> =
        metadata.workspace_packages().into_iter().filter(|package| is_published(package)).collect();
    let mut sets = 0;
    for package in published.iter().filter(|package| !package.features.is_empty()) {
        for features in feature_sets(package) {
            let root = if has_library(package) { "--lib" } else { "--bins" };
            let mut command =
                without_toolchain(workspace.cargo(&["check", "--locked", "--quiet", root]), &target);
            command.args(["--package", &package.name, "--no-default-features", "--features", &features]);
            process::run(&mut command)?;
            sets += 1;
        }
    }
    let mut command = without_toolchain(
        workspace.cargo(&["doc", "--locked", "--no-deps", "--lib", "--all-features"]),
        &target,
    );
    for package in published.iter().filter(|package| has_library(package)) {
        command.args(["--package", &package.name]);
    }
    process::run(command.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(format!("{sets} feature sets; documentation without a native toolchain"))
}

/// No feature, and each alone; all of them together the documentation takes.
fn feature_sets(package: &Package) -> BTreeSet<String> {
    let alone = package.features.keys().filter(|feature| *feature != "default").cloned();
    alone.chain([String::new()]).collect()
}

/// A command that finds neither a compiler for C nor anything of ours.
fn without_toolchain(mut command: Command, target: &Path) -> Command {
    command.env("DOCS_RS", "1").env("CARGO_TARGET_DIR", target);
    for name in ["MLXCEL_MLX_DIR", "MLXCEL_IREE_COMPILER", "IREE_DIST"] {
        command.env(name, "/there/is/no/native/toolchain");
    }
    command
}
