//! `bench gpu`: a folder with everything that the suite needs on a machine with a GPU, which may have no
//! network; and its run.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::setup::Packages;
use crate::workspace::Workspace;

/// Where the folder is, and the suite's own arguments.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Writes the folder and measures nothing: `FOLDER/run` does, on a machine with a GPU and its driver
    #[arg(long, value_name = "FOLDER")]
    pack: Option<PathBuf>,
    /// Further arguments of the suite; `-- --help` lists them
    #[arg(last = true)]
    suite: Vec<String>,
}

/// What the suite compares engines with: folders of checkpoints with oracles.
const ORACLES: [&str; 2] = ["fixtures/architectures", "fixtures/formats"];
/// The bundled model, which has an oracle too.
const STORYTELLER: &str = "mlxcel-cli/storyteller";

/// Packs and, unless only that was asked for, runs.
pub(super) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the suite `gpu` is for Linux on x86-64");
    }
    let folder = arguments.pack.clone().unwrap_or_else(|| super::folder(workspace).join("gpu"));
    pack(workspace, &folder)?;
    if arguments.pack.is_some() {
        eprintln!("bench: {} has all that {} needs", folder.display(), folder.join("run").display());
        return Ok(());
    }
    process::run(Command::new(folder.join("run")).args(&arguments.suite))
}

fn pack(workspace: &Workspace, folder: &Path) -> Result<()> {
    let root = workspace.root();
    let headers =
        Packages::new("cuda-headers", "benches/gpu/headers.txt", "the headers of CUDA (about 10 MB)")
            .for_any_python();
    let mlx = Packages::new("mlx-cuda", "benches/gpu/mlx.txt", "MLX for CUDA (about 90 MB)").for_any_python();
    let (headers, mlx) = (headers.install(workspace)?, mlx.install(workspace)?);
    let toolchain = workspace.toolchain();
    let mut build = workspace.cargo(&["build", "--locked", "--release", "--package", "mlxcel-benches"]);
    build.args(["--features", "cuda,vulkan"]);
    build.env("IREE_CUDA_DEPS_DIR", headers.join("nvidia/cu13"));
    // The program runs with another MLX than it was built with, which is found by its name.
    build.env("MLXCEL_MLX_LINK", "soname");
    process::run(&mut build).context("building the suite for GPUs")?;

    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let copy = |from: PathBuf, to: &str| copy_all(&from, &folder.join(to));
    copy(root.join("target/release/mlxcel-benches"), "mlxcel-benches")?;
    copy(root.join("benches/gpu/run"), "run")?;
    copy(root.join("benches/jax/worker.py"), "jax/worker.py")?;
    let compiler = toolchain.join("python/iree/compiler/_mlir_libs");
    for file in ["iree-compile", "iree-lld", "libIREECompiler.so"] {
        copy(compiler.join(file), &format!("iree/{file}"))?;
    }
    for part in ["mlx", "mlx_cuda_13.libs"] {
        copy(mlx.join(part), part)?;
    }
    for (part, name) in [("mlx/lib", "mlx-cpu/lib"), ("mlx_cpu.libs", "mlx_cpu.libs")] {
        copy(toolchain.join("python").join(part), name)?;
    }
    copy(root.join(STORYTELLER), "oracles/storyteller")?;
    for oracles in ORACLES {
        copy(root.join(oracles), "oracles")?;
    }
    Ok(())
}

/// Copies a file, or a folder with all that is in it.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    let context = || format!("copying {} to {}", from.display(), to.display());
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(context)?;
    }
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).with_context(context);
    }
    for entry in fs::read_dir(from).with_context(context)? {
        let path = entry.with_context(context)?.path();
        copy_all(&path, &to.join(path.file_name().unwrap_or(OsStr::new(""))))?;
    }
    Ok(())
}
