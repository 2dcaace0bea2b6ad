//! New projects on a machine with Rust, a C compiler, and nothing else.
//!
//! HOME is empty, and PATH has `rustc`, `cargo` and `cc` with its assembler, linker and archiver. The crates
//! as they would be published are in a folder beside copies of their dependencies, which replaces crates.io,
//! so cargo needs no network, and a file that a package lacks is missed here and not by the first user. The
//! lines of the README are one project. Others, which compile for longer, are made in a night:
//!
//! - a program with the feature `iree`, which writes a bundle, and then opens it with neither IREE's compiler
//!   nor Python on the machine;
//! - `tests-external/my-backend`, an engine of a third party with its tests;
//! - `tests-external/applications`, small programs to copy, run on the bundled model;
//! - a program with the feature `mlx`, for which there is a C++ compiler too.

mod readme;
mod registry;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use self::registry::Registry;
use super::compile::Counts;
use super::external::{MODEL, exports_nothing};
use super::packages::Packages;
use crate::process;
use crate::setup::symlink;
use crate::workspace::Workspace;

/// All that is on PATH: Rust, and the C compiler with the assembler, linker and archiver that it runs by
/// name.
const PROGRAMS: [&str; 6] = ["rustc", "cargo", "cc", "as", "ld", "ar"];
/// What the MLX engine needs to build beyond that.
const CXX: &str = "c++";
/// The program with the feature `iree`.
const WITH_BUNDLE: &str = include_str!("newcomer/with_bundle.rs");
/// The program with the feature `mlx`.
const WITH_MLX: &str = include_str!("newcomer/with_mlx.rs");
/// An engine of a third party, below `tests-external/`.
pub(super) const MY_BACKEND: &str = "my-backend";
/// Small applications, below `tests-external/`; each file of `src/bin` is one.
pub(super) const APPLICATIONS: &str = "applications";
/// Packages that need a native toolchain: none may be below mlxcel-session's default features.
const NATIVE: &[&str] = &["mlxcel-iree-sys", "bindgen", "clang-sys", "cmake", "cc", "cxx", "mlxcel-mlx"];

/// What README says, and what is in the packages.
pub(super) fn check(workspace: &Workspace) -> Result<String> {
    with_machine(workspace, |machine, packages| {
        let (readme, times) = readme::run(workspace, machine)?;
        machine.has_no_native_dependency(&readme)?;
        let (number, largest) = (packages.unpacked.len(), packages.largest as f64 / 1e6);
        Ok(format!("{number} packages of at most {largest:.1} MB; README's program, a debug build: {times}"))
    })
}

/// The other projects.
pub(super) fn projects(workspace: &Workspace) -> Result<String> {
    with_machine(workspace, |machine, _| {
        machine.run_applications(workspace)?;
        run_with_bundle(workspace, machine)?;
        let counts = machine.prove_my_backend(workspace)?;
        run_with_mlx(workspace, machine)?;
        Ok(format!("{APPLICATIONS}, iree with a bundle, mlx; {MY_BACKEND}: {counts}"))
    })
}

fn with_machine<T>(workspace: &Workspace, check: impl FnOnce(&Machine, &Packages) -> Result<T>) -> Result<T> {
    let packages = Packages::make(workspace)?;
    let registry = Registry::make(workspace, &packages)?;
    let place = tempfile::tempdir().context("making an empty folder")?;
    check(&Machine::prepare(workspace, place.path(), &registry, &packages)?, &packages)
}

fn run_with_bundle(workspace: &Workspace, machine: &Machine) -> Result<()> {
    let place = &machine.place;
    let project = machine.new_project("with-bundle")?;
    process::run(machine.cargo(&project).args(["add", "--quiet", "mlxcel-session", "--features", "iree"]))?;
    fs::write(project.join("src/main.rs"), WITH_BUNDLE).context("writing the program")?;
    let bundle = place.join("bundle");
    let mut write = machine.cargo(&project);
    write.args(["run", "--quiet", "--", "write"]).arg(&machine.model).arg(&bundle);
    let compiler = workspace.toolchain().join("bin/iree-compile");
    process::run(write.env("MLXCEL_IREE_COMPILER", compiler).env("HOME", place))
        .context("writing a bundle in a new project with the feature `iree`")?;
    process::run(machine.cargo(&project).args(["run", "--quiet", "--", "run"]).arg(&bundle))
        .context("opening the bundle without a compiler")?;
    machine.is_built_once(&project)?;
    exports_nothing(&machine.built("with-bundle"))
}

fn run_with_mlx(workspace: &Workspace, machine: &Machine) -> Result<()> {
    machine.provide(CXX)?;
    let project = machine.new_project("with-mlx")?;
    process::run(machine.cargo(&project).args(["add", "--quiet", "mlxcel-session", "--features", "mlx"]))?;
    fs::write(project.join("src/main.rs"), WITH_MLX).context("writing the program")?;
    let mut build = machine.cargo(&project);
    process::run(build.args(["build", "--quiet"]).env("MLXCEL_MLX_DIR", workspace.toolchain().join("mlx")))
        .context("a new project with the feature `mlx`")?;
    // Without cargo, which helps loaders to find libraries.
    process::run(machine.command(&machine.built("with-mlx"), &project).arg(&machine.model))
        .context("a program with the feature `mlx`, started by itself")
}

/// A machine with next to nothing on it.
struct Machine {
    /// The folder of the others.
    place: PathBuf,
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
            place: place.to_path_buf(),
            projects: place.join("projects"),
            home: place.join("home"),
            programs: place.join("programs"),
            target: packages.target(),
            model: workspace.root().join(MODEL),
        };
        for folder in [&machine.projects, &machine.home, &machine.programs] {
            fs::create_dir(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        PROGRAMS.into_iter().try_for_each(|name| machine.provide(name))?;
        registry.configure(&machine.projects)?;
        machine.forget(packages)?;
        Ok(machine)
    }

    /// Puts a program on PATH.
    fn provide(&self, name: &str) -> Result<()> {
        let link = self.programs.join(name);
        symlink(&program(name)?, &link).with_context(|| format!("making {}", link.display()))
    }

    /// The program that a project of this name built.
    fn built(&self, name: &str) -> PathBuf {
        self.target.join("debug").join(name)
    }

    fn has_no_native_dependency(&self, project: &Path) -> Result<()> {
        let mut command = self.cargo(project);
        command.args(["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
        let tree = process::output(&mut command)?;
        let native: Vec<_> = tree.lines().filter(|line| is_native(line)).collect();
        if !native.is_empty() {
            bail!("README's project has dependencies that need a native toolchain: {}", native.join(", "));
        }
        Ok(())
    }

    /// A copy of a package below `tests-external/`.
    fn copied(&self, workspace: &Workspace, name: &str) -> Result<PathBuf> {
        let project = self.projects.join(name);
        let from = workspace.root().join("tests-external").join(name);
        process::run(Command::new("cp").arg("-R").args([&from, &project]))?;
        Ok(project)
    }

    /// Builds the small applications and runs each on the bundled model.
    fn run_applications(&self, workspace: &Workspace) -> Result<()> {
        let project = self.copied(workspace, APPLICATIONS)?;
        process::run(self.cargo(&project).args(["build", "--quiet"])).context(APPLICATIONS)?;
        let sources = project.join("src/bin");
        let sources =
            fs::read_dir(&sources).with_context(|| format!("listing {}", sources.display()))?.flatten();
        for source in sources {
            let name = source.path().file_stem().unwrap_or_default().display().to_string();
            let said = process::output(self.command(&self.built(&name), &project).arg(&self.model))
                .with_context(|| format!("the application {name}"))?;
            if said.trim().is_empty() {
                bail!("the application {name} printed nothing");
            }
        }
        Ok(())
    }

    /// Runs the tests of the third party's engine.
    fn prove_my_backend(&self, workspace: &Workspace) -> Result<Counts> {
        let project = self.copied(workspace, MY_BACKEND)?;
        let mut counts = Counts::default();
        // For the tests in the documentation.
        self.provide("rustdoc")?;
        let mut test = self.cargo(&project);
        process::run_watched(test.arg("test"), |line| counts.add(line))
            .with_context(|| counts.to_string())?;
        if counts.passed == 0 {
            bail!("no test of {MY_BACKEND} ran");
        }
        Ok(counts)
    }

    /// Drops what an earlier run built of our crates: cargo takes a package of one version from a registry to
    /// be always the same.
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
    process::on_path(name).with_context(|| format!("{name} is not on PATH"))
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
