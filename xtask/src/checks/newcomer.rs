//! A new project on a machine with Rust, a C compiler, and nothing else.
//!
//! HOME is empty, and PATH has `rustc`, `cargo` and `cc` with its assembler, linker and archiver. The packaged crates are in a
//! folder beside copies of their dependencies, which
//! replaces crates.io, so cargo needs no network. There it runs the lines of the README, and a program with the feature `iree`
//! that writes a
//! bundle, and then opens it with neither IREE's compiler nor Python on the machine.

mod readme;
mod registry;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use self::registry::Registry;
use super::external::MODEL;
use super::packages::{Packages, SharedPackages};
use crate::process;
use crate::setup::symlink;
use crate::workspace::Workspace;

/// All that is on PATH: Rust, and the C compiler with the assembler, linker and archiver that it runs by name.
const PROGRAMS: [&str; 6] = ["rustc", "cargo", "cc", "as", "ld", "ar"];
/// The program with the feature `iree`.
const WITH_BUNDLE: &str = include_str!("newcomer/with_bundle.rs");

pub(super) fn check(workspace: &Workspace, packages: &SharedPackages) -> Result<String> {
    let packages = packages.get(workspace)?;
    let registry = Registry::make(workspace, packages)?;
    let place = tempfile::tempdir().context("making an empty folder")?;

    let machine = Machine::prepare(workspace, place.path(), &registry, packages)?;
    readme::run(workspace, &machine)?;

    let project = machine.new_project("with-bundle")?;
    process::run(machine.cargo(&project).args(["add", "--quiet", "mlxcel-session", "--features", "iree"]))?;
    fs::write(project.join("src/main.rs"), WITH_BUNDLE).context("writing the program")?;
    let bundle = place.path().join("bundle");
    let mut write = machine.cargo(&project);
    write.args(["run", "--quiet", "--", "write"]).arg(&machine.model).arg(&bundle);
    let compiler = workspace.toolchain().join("bin/iree-compile");
    process::run(write.env("MLXCEL_IREE_COMPILER", compiler).env("HOME", place.path()))
        .context("writing a bundle in a new project with the feature `iree`")?;
    process::run(machine.cargo(&project).args(["run", "--quiet", "--", "run"]).arg(&bundle))
        .context("opening the bundle without a compiler")?;
    machine.is_built_once(&project)?;
    Ok("README's lines, and a bundle on the packaged crates with rustc, cargo and cc alone; a second build does nothing".to_owned())
}

/// A machine with next to nothing on it.
struct Machine {
    /// Where projects are; above them is the configuration of cargo.
    projects: PathBuf,
    home: PathBuf,
    programs: PathBuf,
    target: PathBuf,
    model: PathBuf,
}

impl Machine {
    fn prepare(
        workspace: &Workspace,
        place: &Path,
        registry: &Registry,
        packages: &Packages,
    ) -> Result<Self> {
        let machine = Self {
            projects: place.join("projects"),
            home: place.join("home"),
            programs: place.join("programs"),
            target: packages.target(),
            model: workspace.root().join(MODEL),
        };
        for folder in [&machine.projects, &machine.home, &machine.programs] {
            fs::create_dir(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        for name in PROGRAMS {
            let link = machine.programs.join(name);
            symlink(&program(name)?, &link).with_context(|| format!("making {}", link.display()))?;
        }
        registry.configure(&machine.projects)?;
        machine.forget(packages)?;
        Ok(machine)
    }

    /// Drops what an earlier run built of our crates: cargo takes a package of one version from a registry to be always the same.
    fn forget(&self, packages: &Packages) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.target.join("debug/.fingerprint")) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if packages.unpacked.iter().any(|package| name.starts_with(&format!("{}-", package.name))) {
                fs::remove_dir_all(entry.path())
                    .with_context(|| format!("removing {}", entry.path().display()))?;
            }
        }
        Ok(())
    }

    /// A command without any of our variables, with the empty HOME and the short PATH.
    fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(folder).env("HOME", &self.home).env("PATH", &self.programs);
        command.env("CARGO_TARGET_DIR", &self.target);
        command
    }

    fn cargo(&self, project: &Path) -> Command {
        self.command(&self.programs.join("cargo"), project)
    }

    fn new_project(&self, name: &str) -> Result<PathBuf> {
        process::run(self.cargo(&self.projects).args(["new", "--quiet", "--vcs", "none", name]))?;
        Ok(self.projects.join(name))
    }

    /// A second build finds everything done.
    fn is_built_once(&self, project: &Path) -> Result<()> {
        let mut command = self.cargo(project);
        command.arg("build");
        let mut again = Vec::new();
        process::for_each_message(command, |message| {
            if let Message::CompilerArtifact(artifact) = message
                && !artifact.fresh
            {
                again.push(artifact.target.name);
            }
        })?;
        if !again.is_empty() {
            bail!("a second build compiles again: {}", again.join(", "));
        }
        Ok(())
    }
}

/// The real program of this name: behind rustup's stand-ins, which look for toolchains in HOME.
fn program(name: &str) -> Result<PathBuf> {
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let of_toolchain = Path::new(sysroot.trim()).join("bin").join(name);
    if of_toolchain.is_file() {
        return Ok(of_toolchain);
    }
    let path = std::env::var_os("PATH").context("there is no PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .with_context(|| format!("{name} is not on PATH"))
}
