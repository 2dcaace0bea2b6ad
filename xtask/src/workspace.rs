//! Where the repository is, and cargo commands that run in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};

use crate::{checks, process};

/// Features that need something which not every machine has, or replace what the others test;
/// [`crate::checks`] has a check of its own for them where there is one.
const APART: &[(&str, &[&str])] = &[
    ("mlxcel-benches", &["cuda", "vulkan"]),
    ("mlxcel-cli", &["vulkan"]),
    ("mlxcel-iree", &["cuda", "dist", "vulkan"]),
    ("mlxcel-iree-runtime", &["cuda", "dist", "vulkan"]),
    ("mlxcel-iree-sys", &["cuda", "dist", "vulkan"]),
    ("mlxcel-session", &["iree-dist", "vulkan"]),
];

/// The repository that this program was built from.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the repository: the folder above this package.
    pub(crate) fn locate() -> Result<Self> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.parent().context("the folder of xtask has no parent")?;
        let root =
            root.canonicalize().with_context(|| format!("the repository {} is gone", root.display()))?;
        Ok(Self { root })
    }

    /// The repository's top folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder that [`crate::setup`] fills.
    pub(crate) fn toolchain(&self) -> PathBuf {
        self.root.join(".toolchain")
    }

    /// A cargo command in the repository, by the cargo that runs this program.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo_program());
        command.args(arguments).current_dir(&self.root);
        if checks::in_ci() {
            // Notes for a second compilation, which there is none of.
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }

    /// `cargo` as all tests are compiled: by clippy, which compiles as rustc does and finds what it has lints
    /// for, so that nothing is compiled for the lints alone.
    pub(crate) fn cargo_with_lints(&self, arguments: &[&str]) -> Command {
        let mut command = self.cargo(arguments);
        command.env("RUSTC_WORKSPACE_WRAPPER", program_of_toolchain("clippy-driver"));
        command
    }

    /// The argument of `--features` that turns on all that compiles on every machine, for commands on the
    /// whole workspace.
    pub(crate) fn features(&self) -> Result<String> {
        let metadata = self.metadata()?;
        let mut features = Vec::new();
        for package in metadata.workspace_packages() {
            let apart = APART.iter().find(|(name, _)| *name == package.name.as_str());
            let apart = apart.map_or(&[][..], |(_, apart)| apart);
            let wanted = package.features.keys().filter(|feature| !apart.contains(&feature.as_str()));
            features.extend(wanted.map(|feature| format!("{}/{feature}", package.name)));
        }
        Ok(features.join(","))
    }

    /// A program of a package here, built for the package's integration test `test` with the features of the
    /// whole workspace: so it is there once all tests are compiled. (`cargo build` would compile again
    /// what has more features in tests.)
    pub(crate) fn program(&self, name: &str, test: &str) -> Result<Command> {
        let features = self.features()?;
        let arguments =
            ["test", "--locked", "--workspace", "--features", &features, "--test", test, "--no-run"];
        process::run(&mut self.cargo_with_lints(&arguments))?;
        self.built(name)
    }

    /// A program that cargo has built in the dev profile.
    pub(crate) fn built(&self, name: &str) -> Result<Command> {
        let target = self.metadata()?.target_directory.into_std_path_buf();
        Ok(Command::new(target.join("debug").join(name).with_extension(std::env::consts::EXE_EXTENSION)))
    }

    /// The dependency graph of the workspace with all features.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        MetadataCommand::new()
            .cargo_path(cargo_program())
            .manifest_path(self.root.join("Cargo.toml"))
            .features(CargoOpt::AllFeatures)
            .other_options(["--locked".to_owned()])
            .exec()
            .context("cargo metadata")
    }
}

/// The cargo that runs this program.
pub(crate) fn cargo_program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The program of this name beside cargo, or else the one on PATH.
pub(crate) fn program_of_toolchain(name: &str) -> PathBuf {
    let beside_cargo = Path::new(&cargo_program()).with_file_name(name);
    if beside_cargo.is_file() { beside_cargo } else { name.into() }
}
