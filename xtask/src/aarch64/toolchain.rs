//! The toolchain for 64-bit Arm: a C compiler, an emulator, and a Rust standard library.
//!
//! Compiler and emulator are packages of Debian and Ubuntu. The standard library is rustup's if the toolchain
//! has the target; else Debian's own
//! Rust is used, whose standard library for 64-bit Arm is unpacked into `.toolchain/aarch64/` instead of
//! installed, which would pull in system libraries of another architecture.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::workspace::{Workspace, cargo_program};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The C compiler, which is also the linker.
const COMPILER: &str = "aarch64-linux-gnu-gcc";

const EMULATOR: &str = "qemu-aarch64";

/// The folder of the C library in the packages.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Packages with the compilers, the C library and the emulator.
const PACKAGES: [&str; 4] =
    ["gcc-aarch64-linux-gnu", "g++-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];

/// Packages with a version of Debian's Rust that builds this repository.
const RUST_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "libstd-rust-web-dev"];

const STANDARD_LIBRARY: &str = "libstd-rust-web-dev:arm64";

pub(super) struct Toolchain {
    cargo: OsString,
    /// Debian's compiler, and the folder with its standard library; `None` if rustup's are used.
    packaged: Option<(PathBuf, PathBuf)>,
}

impl Toolchain {
    /// Finds the tools, and installs missing ones if this process may.
    pub(super) fn provision(workspace: &Workspace) -> Result<Self> {
        if cfg!(target_arch = "aarch64") {
            bail!("this machine is 64-bit Arm itself: `cargo xtask test` runs all tests on it");
        }
        let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !is_there(COMPILER) || !is_there(EMULATOR) || !Path::new(LIBRARIES).is_dir() {
            install(&PACKAGES)?;
        }
        if has_standard_library("rustc".as_ref(), None) {
            return Ok(Self { cargo: cargo_program(), packaged: None });
        }
        let rustc = PathBuf::from("/usr/bin/rustc");
        if !rustc.exists() || !Path::new("/usr/bin/cargo").exists() {
            let tell = format!("or run `rustup target add {TARGET}`");
            install(&RUST_PACKAGES).context(tell)?;
        }
        let root = workspace.toolchain().join("aarch64");
        if !has_standard_library(&rustc, Some(&root)) {
            unpack_standard_library(&root)?;
        }
        Ok(Self { cargo: "/usr/bin/cargo".into(), packaged: Some((rustc, root)) })
    }

    /// `cargo test` with these arguments for the target, on an emulated processor.
    ///
    /// Builds use a separate target folder, because builds for this machine may use another compiler.
    pub(super) fn test(&self, workspace: &Workspace, arguments: &[&str], cpu: &str) -> Command {
        let variable =
            |name: &str| format!("CARGO_TARGET_{}_{name}", TARGET.to_uppercase().replace('-', "_"));
        let mut command = Command::new(&self.cargo);
        command.args(["test", "--locked", "--target", TARGET]).args(arguments);
        command.current_dir(workspace.root());
        command.env("CARGO_TARGET_DIR", workspace.root().join("target/aarch64"));
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env(variable("LINKER"), COMPILER);
        command.env(variable("RUNNER"), format!("{EMULATOR} -cpu {cpu} -L {LIBRARIES}"));
        if let Some((rustc, root)) = &self.packaged {
            let flags = format!("--sysroot\u{1f}{}", root.display());
            // These variables of the calling cargo name another toolchain.
            command.env("RUSTC", rustc).env("CARGO_ENCODED_RUSTFLAGS", flags).env_remove("CARGO");
            command.env_remove("RUSTUP_TOOLCHAIN");
        }
        command
    }
}

/// Whether a compiler, with its own or this sysroot, has the standard library of the target.
fn has_standard_library(rustc: &Path, sysroot: Option<&Path>) -> bool {
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", TARGET]);
    if let Some(sysroot) = sysroot {
        command.arg("--sysroot").arg(sysroot);
    }
    let Ok(version) = process::output(Command::new(rustc).arg("--version")) else { return false };
    let of_this_version =
        |sysroot: &Path| fs::read_to_string(sysroot.join(VERSION)).is_ok_and(|unpacked| unpacked == version);
    let folder = process::output(&mut command).map(|folder| PathBuf::from(folder.trim()));
    folder.is_ok_and(|folder| folder.is_dir()) && sysroot.is_none_or(of_this_version)
}

/// The file with the compiler version of an unpacked standard library.
const VERSION: &str = "version";

/// Installs packages, or fails with the command to run.
fn install(packages: &[&str]) -> Result<()> {
    let words = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let by_hand = format!("`apt-get update && apt-get {}` as root", words.join(" "));
    let is_root = process::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if !is_root {
        bail!("tests for 64-bit Arm need packages of Debian or Ubuntu: run {by_hand}");
    }
    eprintln!("aarch64: installing {}", packages.join(" "));
    let mut apt = Command::new("apt-get");
    process::run(apt.arg("update"))
        .and_then(|()| {
            process::run(Command::new("apt-get").args(&words).env("DEBIAN_FRONTEND", "noninteractive"))
        })
        .with_context(|| format!("installing what builds for 64-bit Arm; by hand: {by_hand}"))
}

/// Unpacks Debian's Rust standard library for the target into a folder for `--sysroot`.
///
/// The system does not have the packages' architecture, so apt uses separate package lists.
fn unpack_standard_library(root: &Path) -> Result<()> {
    let parent = root.parent().context("the toolchain has no folder")?;
    let folder = tempfile::tempdir_in(parent).context("making a folder beside the toolchain")?;
    let path = |name: &str| folder.path().join(name);
    for name in ["state/lists/partial", "cache/archives/partial", "sysroot/lib"] {
        fs::create_dir_all(path(name)).with_context(|| format!("creating {name}"))?;
    }
    let options = [
        "APT::Architectures::=arm64".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        format!("Dir::State={}", path("state").display()),
        "Dir::State::status=/var/lib/dpkg/status".to_owned(),
        format!("Dir::Cache={}", path("cache").display()),
    ];
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(options.iter().flat_map(|option| ["-o", option])).args(arguments);
        command.current_dir(folder.path());
        command
    };
    process::run(&mut apt(&["update"]))?;
    process::run(&mut apt(&["download", STANDARD_LIBRARY]))?;
    for entry in fs::read_dir(folder.path()).context("reading what was downloaded")? {
        let package = entry.context("reading what was downloaded")?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            process::run(Command::new("dpkg").arg("-x").arg(&package).arg(path("unpacked")))?;
        }
    }
    fs::rename(path("unpacked/usr/lib/rustlib"), path("sysroot/lib/rustlib"))
        .with_context(|| format!("{STANDARD_LIBRARY} has no standard library"))?;
    let version = process::output(Command::new("/usr/bin/rustc").arg("--version"))?;
    fs::write(path("sysroot").join(VERSION), version).context("writing the version")?;
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("emptying {}", root.display()))?;
    }
    fs::rename(path("sysroot"), root).with_context(|| format!("creating {}", root.display()))
}
