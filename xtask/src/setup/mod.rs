//! `setup`: what the IREE engine and the MLX engine are built and run with, in `.toolchain/`.
//!
//! ```text
//! .toolchain/python/    the packages of toolchain/requirements.txt, unpacked by pip
//! .toolchain/bin/       cmake, ninja, iree-compile: links into python/
//! .toolchain/lib        the folder of libclang: a link into python/
//! .toolchain/mlx        MLX's include/ and lib/: a link into python/
//! .toolchain/include    the C compiler's own headers: a link to where it keeps them
//! ```
//!
//! `.cargo/config.toml` names these paths. Packages are unpacked beside their place and renamed into it together
//! with a stamp of the requirements, so an interrupted run leaves nothing that a later one would trust, and a
//! finished one needs no network again.

mod links;
mod openblas;
mod packages;

use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context, Result};
use fs4::FileExt;

use crate::process;
use crate::workspace::Workspace;

pub(crate) use packages::{Packages, find_python};

/// What to provision beyond what every task needs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also make .toolchain/openblas/mlx: MLX for Linux with OpenBLAS, for products that our own kernels do not compute
    #[arg(long)]
    openblas: bool,
}

/// Makes `.toolchain/` complete, with what was asked for beyond it.
pub(crate) fn run_with(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    run(workspace)?;
    if arguments.openblas {
        openblas::install(workspace)?;
    }
    Ok(())
}

/// Makes `.toolchain/` complete; does nothing where it is.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let toolchain = workspace.toolchain();
    fs::create_dir_all(&toolchain).with_context(|| format!("creating {}", toolchain.display()))?;

    let lock_path = toolchain.join("lock");
    let lock =
        File::create(&lock_path).with_context(|| format!("creating the lock {}", lock_path.display()))?;
    if FileExt::try_lock(&lock).is_err() {
        eprintln!("setup: waiting for another `cargo xtask setup`");
        FileExt::lock(&lock).with_context(|| format!("locking {}", lock_path.display()))?;
    }

    // Asked first: without a compiler the rest, and its download, would be of no use.
    let headers = links::compiler_headers()?;
    let installed = packages::install(workspace)?;
    links::refresh(&toolchain, &headers)?;
    if installed {
        report_versions(workspace)?;
    }
    eprintln!("setup: the toolchain in {} is ready", toolchain.display());
    Ok(())
}

/// Starts each program once: one that cannot run here (another C library, say) is found now and not midway a build.
fn report_versions(workspace: &Workspace) -> Result<()> {
    for tool in ["cmake", "ninja", "iree-compile"] {
        let program = workspace.toolchain().join("bin").join(tool);
        let said = process::output(Command::new(&program).arg("--version"))
            .with_context(|| format!("the provisioned {tool} does not run on this machine"))?;
        let version = said.lines().map(str::trim).find(|line| line.chars().any(|c| c.is_ascii_digit()));
        eprintln!("setup: {tool}: {}", version.unwrap_or_default());
    }
    Ok(())
}
