//! Packages outside the workspace, in `tests-external/`, built as an application of a user is.
//!
//! They are built from a folder above which there is no `.cargo/config.toml` of ours, so what they need is
//! named in the environment, as the README tells a user to. They share the workspace's target folder, profile
//! and versions: what is compiled already is not compiled again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};

use crate::process;
use crate::workspace::{Workspace, cargo_program};

/// The environment of the package with the IREE engine at run time, as a path in `.toolchain/`; its build
/// needs only a C compiler.
const IREE_ENVIRONMENT: (&str, &str) = ("MLXCEL_IREE_COMPILER", "bin/iree-compile");
/// A choice of engine for the tests is none for these packages.
const BACKEND: &str = "MLXCEL_BACKEND";

/// The bundled checkpoint.
pub(super) const MODEL: &str = "examples/models/storyteller";

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
            let (name, path) = IREE_ENVIRONMENT;
            if std::env::var_os(name).is_none() {
                command.env(name, workspace.toolchain().join(path));
            }
        })
    }

    /// See [`exports_nothing`].
    pub(super) fn exports_nothing(&self) -> Result<()> {
        exports_nothing(&self.target.join("debug").join(self.name))
    }
}

/// A program with the IREE engine must not export a symbol of IREE's or of ours: a library that it loads
/// would bind to it.
pub(super) fn exports_nothing(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("parsing {}", program.display()))?;
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let names = symbols.filter_map(|symbol| symbol.name().ok()).filter(|name| name.contains("iree"));
    let names: BTreeSet<_> = names.collect();
    if let Some(name) = names.first() {
        bail!("{} exports {name} and {} further names of IREE's", program.display(), names.len() - 1);
    }
    Ok(())
}
