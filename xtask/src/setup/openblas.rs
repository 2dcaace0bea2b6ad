//! `setup --openblas`: MLX for Linux with OpenBLAS in place of the reference BLAS that its wheel brings.
//!
//! ```text
//! .toolchain/openblas/mlx/include          a link to MLX's headers
//! .toolchain/openblas/mlx/lib/libmlx.so    a copy, which finds its BLAS relative to itself:
//! .toolchain/openblas/mlx_cpu.libs/        libblas-….so made here, the rest copied
//! ```
//!
//! OpenBLAS from PyPI has its functions under names with a prefix, so the file that stands where MLX looks
//! for BLAS is a library of jumps: `cblas_sgemm` to `scipy_cblas_sgemm`, and so on for all that the original
//! exports and OpenBLAS has. `MLXCEL_MLX_DIR=.toolchain/openblas/mlx` builds with it. pip's own files stay as
//! they are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};
use sha2::{Digest, Sha256};

use super::links;
use super::packages::{Packages, hexadecimal, remove_folder};
use crate::process;
use crate::workspace::Workspace;

/// What OpenBLAS's names begin with.
const PREFIX: &str = "scipy_";
const OPENBLAS: &str = "libscipy_openblas.so";
const STAMP: &str = ".made-from-sha256";

/// Makes `.toolchain/openblas/` complete; does nothing where it is. The rest of the toolchain is there.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("--openblas is for Linux: MLX for macOS uses the system's own Accelerate");
    }
    let toolchain = workspace.toolchain();
    let python = Packages::new("openblas-python", "xtask/toolchain/openblas.txt", "OpenBLAS (about 8 MB)")
        .for_any_python()
        .install(workspace)?;

    let library = toolchain.join("python/mlx/lib/libmlx.so");
    let companions = toolchain.join("python/mlx_cpu.libs");
    let openblas = python.join("scipy_openblas32/lib").join(OPENBLAS);
    let blas = only_file(&companions, "libblas-")?;
    let lapack = only_file(&companions, "liblapack-")?;

    let place = toolchain.join("openblas");
    let stamp = digest(&[&library, &blas, &lapack, &openblas])?;
    if fs::read_to_string(place.join(STAMP)).is_ok_and(|found| found == stamp) {
        return Ok(());
    }
    let incoming = toolchain.join("incoming-openblas");
    remove_folder(&incoming)?;
    let (lib, libs) = (incoming.join("mlx/lib"), incoming.join("mlx_cpu.libs"));
    for folder in [&lib, &libs] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    copy_into(&library, &lib)?;
    copy_into(&openblas, &libs)?;
    for entry in fs::read_dir(&companions).with_context(|| format!("reading {}", companions.display()))? {
        let file = entry.with_context(|| format!("reading {}", companions.display()))?.path();
        if file != blas {
            copy_into(&file, &libs)?;
        }
    }
    links::link(&incoming.join("mlx/include"), Path::new("../../mlx/include"))?;

    let offered = exported(&openblas)?;
    let forwarded: BTreeSet<_> =
        exported(&blas)?.into_iter().filter(|name| offered.contains(&format!("{PREFIX}{name}"))).collect();
    let wanted: BTreeSet<_> = imported(&library)?.union(&imported(&lapack)?).cloned().collect();
    let missing: Vec<_> =
        exported(&blas)?.intersection(&wanted).filter(|name| !forwarded.contains(*name)).cloned().collect();
    if !missing.is_empty() {
        bail!("OpenBLAS lacks what MLX needs: {}", missing.join(", "));
    }
    make_jumps(&forwarded, &blas, &libs)?;

    fs::write(incoming.join(STAMP), stamp).context("writing the stamp of OpenBLAS")?;
    remove_folder(&place)?;
    fs::rename(&incoming, &place).with_context(|| format!("moving OpenBLAS to {}", place.display()))?;
    eprintln!("setup: MLX with OpenBLAS: build with MLXCEL_MLX_DIR={}", place.join("mlx").display());
    Ok(())
}

/// The file in a folder whose name begins so.
fn only_file(folder: &Path, beginning: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    entries
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with(beginning))
        .map(|entry| entry.path())
        .with_context(|| format!("there is no {beginning}… in {}", folder.display()))
}

fn copy_into(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().with_context(|| format!("{} has no name", file.display()))?;
    fs::copy(file, folder.join(name)).with_context(|| format!("copying {}", file.display()))?;
    Ok(())
}

fn digest(files: &[&Path]) -> Result<String> {
    let mut hasher = Sha256::new();
    for file in files {
        hasher.update(fs::read(file).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(hexadecimal(hasher))
}

/// The names that a shared library defines.
fn exported(library: &Path) -> Result<BTreeSet<String>> {
    dynamic_symbols(library, true)
}

/// The names that a shared library wants of others.
fn imported(library: &Path) -> Result<BTreeSet<String>> {
    dynamic_symbols(library, false)
}

fn dynamic_symbols(library: &Path, defined: bool) -> Result<BTreeSet<String>> {
    let bytes = fs::read(library).with_context(|| format!("reading {}", library.display()))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("parsing {}", library.display()))?;
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_undefined() != defined);
    Ok(symbols.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect())
}

/// Builds the library that replaces `blas` in `folder`.
fn make_jumps(names: &BTreeSet<String>, blas: &Path, folder: &Path) -> Result<()> {
    let name = blas.file_name().with_context(|| format!("{} has no name", blas.display()))?;
    let source = folder.join("jumps.s");
    fs::write(&source, jumps(names, std::env::consts::ARCH)?)
        .with_context(|| format!("writing {}", source.display()))?;
    let mut command = Command::new(links::compiler("CC", "cc")?);
    command.args(["-shared", "-nostdlib", "-Xlinker", "-rpath", "-Xlinker", "$ORIGIN"]);
    command.args(["-Xlinker", "-soname", "-Xlinker"]).arg(name);
    command.arg("-o").arg(folder.join(name)).arg(&source).arg(folder.join(OPENBLAS));
    process::run(&mut command).context("linking the jumps to OpenBLAS")?;
    fs::remove_file(&source).with_context(|| format!("removing {}", source.display()))
}

/// A function for each name that jumps to OpenBLAS's: arguments and results stay where they are, whatever
/// they are.
fn jumps(names: &BTreeSet<String>, architecture: &str) -> Result<String> {
    let jump = match architecture {
        "x86_64" => |name: &str| format!("jmp {PREFIX}{name}@PLT"),
        "aarch64" => |name: &str| format!("b {PREFIX}{name}"),
        other => bail!("--openblas is for x86-64 and aarch64, not for {other}"),
    };
    let mut text = String::from(".text\n");
    for name in names {
        text.push_str(&format!(".globl {name}\n.type {name}, %function\n{name}: {}\n", jump(name)));
    }
    text.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shim_function_jumps_to_its_namesake() {
        let names = BTreeSet::from(["cblas_sgemm".to_owned()]);
        assert!(jumps(&names, "x86_64").unwrap().contains("cblas_sgemm: jmp scipy_cblas_sgemm@PLT\n"));
        assert!(jumps(&names, "aarch64").unwrap().contains("cblas_sgemm: b scipy_cblas_sgemm\n"));
        assert!(jumps(&names, "riscv64").is_err());
    }

    #[test]
    fn openblas_is_pinned_by_version_and_hash() {
        let text = include_str!("../../toolchain/openblas.txt");
        assert!(text.contains("scipy-openblas32==") && text.contains("--hash=sha256:"));
    }
}
