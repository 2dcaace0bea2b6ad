//! The C sources of IREE's runtime, in `mlxcel-iree-sys/iree/`: what that crate compiles, the headers, and
//! their licences.
//!
//! They come from a package on crates.io that cargo downloads and checks against the hash in
//! `toolchain/iree-sources/Cargo.lock`. The folder is written beside its place and renamed into it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;
use sha2::{Digest, Sha256};

use super::packages::{hexadecimal, remove_folder};
use crate::workspace::{Workspace, cargo_program};

#[path = "../../../mlxcel-iree-sys/build/sources.rs"]
mod sources;

use sources::Selection;

/// The crate that the sources are for.
const CRATE: &str = "mlxcel-iree-sys";
/// The package that has them, in its folder `iree/`.
const PACKAGE: &str = "eerie-sys";
/// The sum of all files that are taken of it ([`digest`]).
const SHA256: &str = "c16601ab1e0a104cda84f358dabebf40ea4f990117033c30ee10c784ae1cc49a";
const STAMP: &str = ".sha256";

/// Folders below `runtime/src/iree/` whose headers are taken, with those below them.
const HEADERS: [&str; 8] = ["async", "base", "hal", "io", "modules", "schemas", "task", "vm"];
/// Folders among them that nothing which is compiled includes from.
const LEFT_OUT: [&str; 14] = [
    "amdgpu", "check", "cts", "hip", "js", "metal", "null", "test", "testdata", "testing", "tooling",
    "tools", "vmvx", "webgpu",
];
/// Third-party headers, and the licences; a folder means all headers in it.
const BESIDE: [&str; 11] = [
    "AUTHORS",
    "LICENSE",
    "third_party/flatcc/LICENSE",
    "third_party/flatcc/NOTICE",
    "third_party/flatcc/include",
    "third_party/nccl/LICENSE.txt",
    "third_party/nccl/nccl.h",
    "third_party/vulkan_headers/LICENSE.md",
    "third_party/vulkan_headers/LICENSES/Apache-2.0.txt",
    "third_party/vulkan_headers/LICENSES/MIT.txt",
    "third_party/vulkan_headers/include",
];
/// What headers end in.
const ENDINGS: [&str; 3] = ["h", "inc", "inl"];

/// Unpacks the sources unless they are there. Answers whether it did.
pub(super) fn unpack(workspace: &Workspace) -> Result<bool> {
    let place = workspace.root().join(CRATE).join("iree");
    if fs::read_to_string(place.join(STAMP)).is_ok_and(|found| found == SHA256) {
        return Ok(false);
    }
    let upstream = upstream(workspace)?;
    let files = wanted(&upstream)?;
    let found = digest(&upstream, &files)?;
    if found != SHA256 {
        bail!(
            "the sources of IREE in {} are not those of the release: their checksum is {found}, expected {SHA256}; delete \
             that folder and run `cargo xtask setup` again",
            upstream.display()
        );
    }
    let incoming = workspace.root().join(CRATE).join("incoming-iree");
    remove_folder(&incoming)?;
    for file in &files {
        let to = incoming.join(file);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        fs::copy(upstream.join(file), &to).with_context(|| format!("copying {}", file.display()))?;
    }
    fs::write(incoming.join(STAMP), SHA256).context("writing the stamp of IREE's sources")?;
    remove_folder(&place)?;
    fs::rename(&incoming, &place).with_context(|| format!("moving IREE's sources to {}", place.display()))?;
    Ok(true)
}

/// The folder of IREE's sources in the package, which cargo downloads where it has not yet.
pub(crate) fn upstream(workspace: &Workspace) -> Result<PathBuf> {
    let metadata = MetadataCommand::new()
        .cargo_path(cargo_program())
        .manifest_path(workspace.root().join("xtask/toolchain/iree-sources/Cargo.toml"))
        .other_options(["--locked".to_owned()])
        .exec()
        .with_context(|| {
            format!("cargo could not get the package {PACKAGE}, which has the C sources of IREE's runtime")
        })?;
    let package = metadata.packages.iter().find(|package| package.name == PACKAGE);
    let manifest = &package.with_context(|| format!("cargo did not say where {PACKAGE} is"))?.manifest_path;
    let folder = manifest.parent().with_context(|| format!("{manifest} has no folder"))?;
    Ok(folder.join("iree").into_std_path_buf())
}

/// The files that the crate needs on some platform, relative to the package's folder.
fn wanted(upstream: &Path) -> Result<BTreeSet<PathBuf>> {
    let platforms = [("linux", false), ("macos", false), ("windows", true)];
    let mut files: BTreeSet<PathBuf> = platforms
        .into_iter()
        .flat_map(|(system, msvc)| {
            sources::files(Selection { system, msvc, architecture: "x86_64", cuda: true, vulkan: true })
        })
        .map(PathBuf::from)
        .collect();
    for folder in HEADERS {
        add_headers(upstream, &Path::new("runtime/src/iree").join(folder), &mut files)?;
    }
    for path in BESIDE {
        if upstream.join(path).is_dir() {
            add_headers(upstream, Path::new(path), &mut files)?;
        } else {
            files.insert(PathBuf::from(path));
        }
    }
    Ok(files)
}

fn add_headers(upstream: &Path, folder: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    let full = upstream.join(folder);
    for entry in fs::read_dir(&full).with_context(|| format!("reading {}", full.display()))? {
        let entry = entry.with_context(|| format!("reading {}", full.display()))?;
        let name = entry.file_name();
        let path = folder.join(&name);
        if entry.file_type().with_context(|| format!("reading {}", full.display()))?.is_dir() {
            if !LEFT_OUT.iter().any(|left_out| name == *left_out) {
                add_headers(upstream, &path, files)?;
            }
        } else if path.extension().is_some_and(|extension| ENDINGS.iter().any(|ending| extension == *ending))
        {
            files.insert(path);
        }
    }
    Ok(())
}

/// A sum of the names and contents of files.
fn digest(folder: &Path, files: &BTreeSet<PathBuf>) -> Result<String> {
    let mut hasher = Sha256::new();
    for file in files {
        let bytes = fs::read(folder.join(file)).with_context(|| format!("reading {}", file.display()))?;
        let name = file.to_string_lossy().replace('\\', "/");
        hasher.update(format!("{name} {}\n", bytes.len()));
        hasher.update(bytes);
    }
    Ok(hexadecimal(hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_or_renamed_files_change_the_checksum() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.c"), "int a;").unwrap();
        fs::write(folder.path().join("b.c"), "int a;").unwrap();
        let sum = |name: &str| digest(folder.path(), &BTreeSet::from([PathBuf::from(name)])).unwrap();
        let before = sum("a.c");
        assert_ne!(before, sum("b.c"));
        fs::write(folder.path().join("a.c"), "int b;").unwrap();
        assert_ne!(before, sum("a.c"));
    }
}
