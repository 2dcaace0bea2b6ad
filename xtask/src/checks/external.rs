//! Packages outside the workspace, in `tests-external/`, built as an application of a user is.
//!
//! They are built from a folder above which there is no `.cargo/config.toml` of ours, so what they need is named in
//! the environment, as the README tells a user to. They share the workspace's target folder, profile and versions:
//! what is compiled already is not compiled again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;
use object::{Object, ObjectSymbol};

use crate::process;
use crate::workspace::{Workspace, cargo_program};

const PORTABLE: &str = "hello-portable";
const IREE: &str = "hello-iree";
const MLX: &str = "hello-mlx";
/// The folders below `tests-external/`.
pub(super) const PACKAGES: [&str; 3] = [PORTABLE, IREE, MLX];

/// Packages that need a native toolchain: none may be below mlxcel-session's default features.
const NATIVE: &[&str] = &["mlxcel-iree-sys", "bindgen", "clang-sys", "cmake", "cc", "cxx", "mlxcel-mlx"];

/// The environment of the package with the IREE engine at run time, as a path in `.toolchain/`; its build needs only a C compiler.
const IREE_ENVIRONMENT: (&str, &str) = ("MLXCEL_IREE_COMPILER", "bin/iree-compile");
/// The environment of the package with the MLX engine at build time only.
const MLX_ENVIRONMENT: (&str, &str) = ("MLXCEL_MLX_DIR", "mlx");
/// Where loaders look, and what cargo adds to.
const LOADER_PATHS: [&str; 2] = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"];
/// A choice of engine for the tests is none for these packages.
const BACKEND: &str = "MLXCEL_BACKEND";

/// The bundled checkpoint.
pub(super) const MODEL: &str = "examples/models/storyteller";

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let outside = tempfile::tempdir().context("making a folder outside the repository")?;
    let target = workspace.metadata()?.target_directory.into_std_path_buf();

    let portable = External::prepare(workspace, PORTABLE, outside.path(), &target)?;
    portable.has_no_native_dependency()?;
    portable.runs(|command| {
        command.env_remove(IREE_ENVIRONMENT.0).env_remove(MLX_ENVIRONMENT.0);
    })?;

    let iree = External::prepare(workspace, IREE, outside.path(), &target)?;
    iree.runs_through_iree(workspace)?;
    iree.is_built_once()?;
    iree.exports_nothing()?;

    let toolchain = workspace.toolchain();
    let mlx = External::prepare(workspace, MLX, outside.path(), &target)?;
    mlx.runs(|command| {
        let (name, path) = MLX_ENVIRONMENT;
        if std::env::var_os(name).is_none() {
            command.env(name, toolchain.join(path));
        }
    })?;
    mlx.runs_by_itself()?;
    Ok(format!("{} build and generate", PACKAGES.join(", ")))
}

/// One of the packages.
pub(super) struct External {
    name: &'static str,
    manifest: PathBuf,
    model: PathBuf,
    outside: PathBuf,
    target: PathBuf,
    build_environment: Vec<(&'static str, OsString)>,
}

impl External {
    pub(super) fn prepare(
        workspace: &Workspace,
        name: &'static str,
        outside: &Path,
        target: &Path,
    ) -> Result<Self> {
        let folder = workspace.root().join("tests-external").join(name);
        // The versions that the workspace is tested with; cargo drops what is not needed.
        fs::copy(workspace.root().join("Cargo.lock"), folder.join("Cargo.lock"))
            .with_context(|| format!("giving {name} the lock file of the workspace"))?;
        Ok(Self {
            name,
            manifest: folder.join("Cargo.toml"),
            model: workspace.root().join(MODEL),
            outside: outside.to_path_buf(),
            target: target.to_path_buf(),
            build_environment: Vec::new(),
        })
    }

    /// Lets the program run this model instead of the bundled checkpoint.
    pub(super) fn with_model(mut self, model: &Path) -> Self {
        self.model = model.to_path_buf();
        self
    }

    /// Gives the build these variables.
    pub(super) fn with_build_environment(mut self, variables: &[(&'static str, OsString)]) -> Self {
        self.build_environment = variables.to_vec();
        self
    }

    pub(super) fn cargo(&self, subcommand: &str) -> Command {
        self.by_cargo(Command::new(cargo_program()), subcommand)
    }

    /// The same by another cargo than the one that runs this program.
    pub(super) fn by_cargo(&self, mut command: Command, subcommand: &str) -> Command {
        command
            .arg(subcommand)
            .arg("--manifest-path")
            .arg(&self.manifest)
            .current_dir(&self.outside)
            .env("CARGO_TARGET_DIR", &self.target)
            .envs(self.build_environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn has_no_native_dependency(&self) -> Result<()> {
        let mut command = self.cargo("tree");
        command.args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
        let tree = process::output(&mut command)?;
        let mut native: Vec<_> = tree.lines().filter(|line| is_native(line)).collect();
        native.sort_unstable();
        native.dedup();
        if !native.is_empty() {
            bail!("{} has dependencies that need a native toolchain: {}", self.name, native.join(", "));
        }
        Ok(())
    }

    /// Builds and runs the program on its model; it fails by itself if no text comes.
    fn runs(&self, environment: impl FnOnce(&mut Command)) -> Result<()> {
        let mut command = self.cargo("run");
        command.arg("--").arg(&self.model).env_remove(BACKEND);
        environment(&mut command);
        process::run(&mut command).with_context(|| format!("the external package {}", self.name))
    }

    /// The same with the compiler of programs at hand, which the build does not ask for.
    pub(super) fn runs_through_iree(&self, workspace: &Workspace) -> Result<()> {
        self.runs(|command| {
            command.env_remove(MLX_ENVIRONMENT.0);
            let (name, path) = IREE_ENVIRONMENT;
            if std::env::var_os(name).is_none() {
                command.env(name, workspace.toolchain().join(path));
            }
        })
    }

    /// A second build finds everything done: no script of a package asks to run again.
    fn is_built_once(&self) -> Result<()> {
        let mut again = Vec::new();
        let mut command = self.cargo("build");
        command.env_remove(MLX_ENVIRONMENT.0);
        process::for_each_message(command, |message| {
            if let Message::CompilerArtifact(artifact) = message
                && !artifact.fresh
            {
                again.push(artifact.target.name);
            }
        })?;
        if !again.is_empty() {
            bail!("a second build of {} compiles again: {}", self.name, again.join(", "));
        }
        Ok(())
    }

    /// The program must not export a symbol of IREE's or of ours: a library that it loads would bind to it.
    pub(super) fn exports_nothing(&self) -> Result<()> {
        let program = self.target.join("debug").join(self.name);
        let bytes = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        let file = object::File::parse(&*bytes).with_context(|| format!("parsing {}", program.display()))?;
        let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
        let names = symbols.filter_map(|symbol| symbol.name().ok()).filter(|name| name.contains("iree"));
        let names: BTreeSet<_> = names.collect();
        if let Some(name) = names.first() {
            bail!("{} exports {name} and {} further names of IREE's", program.display(), names.len() - 1);
        }
        Ok(())
    }

    /// Runs the program that was built without cargo, which helps loaders, and without any of our variables.
    fn runs_by_itself(&self) -> Result<()> {
        let program = self.target.join("debug").join(self.name);
        let mut command = Command::new(&program);
        command.arg(&self.model).current_dir(&self.outside).env_remove(BACKEND).env_remove(MLX_ENVIRONMENT.0);
        for path in LOADER_PATHS {
            command.env_remove(path);
        }
        process::run(&mut command).with_context(|| format!("{} without cargo", program.display()))
    }
}

/// Whether a line of `cargo tree`, `name v1.2.3 …`, names one of [`NATIVE`].
fn is_native(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|name| NATIVE.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_packages_are_found_in_a_dependency_tree() {
        assert!(is_native("cmake v0.1.58"));
        assert!(is_native("mlxcel-iree-sys v0.1.0 (*)"));
        assert!(!is_native("cmake-like v1.0.0"));
        assert!(!is_native(""));
    }
}
