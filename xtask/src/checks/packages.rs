//! Our crates as they would be published: packaged by cargo, looked into and unpacked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::Package;

use crate::process;
use crate::workspace::Workspace;

/// What every package has to contain.
const FILES: [&str; 5] =
    ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-NOTICES.md"];
/// What crates.io takes at most, in bytes.
const MOST_BYTES: u64 = 10 << 20;

/// An unpacked package.
pub(super) struct Unpacked {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

/// All packages, unpacked below one folder.
pub(super) struct Packages {
    /// The folder that cargo wrote the packages to.
    pub(super) folder: PathBuf,
    pub(super) unpacked: Vec<Unpacked>,
    /// The length of the largest archive.
    pub(super) largest: u64,
}

impl Packages {
    /// Packages every published crate into `target/packaged`, which is emptied first, and checks what the
    /// packages contain.
    pub(super) fn make(workspace: &Workspace) -> Result<Self> {
        let metadata = workspace.metadata()?;
        let folder = metadata.target_directory.as_std_path().join("packaged");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("emptying {}", folder.display()))?;
        }
        let published: Vec<_> =
            metadata.workspace_packages().into_iter().filter(|package| is_published(package)).collect();
        // Without the dry run's own build: `newcomer` builds what was packaged, once instead of once a crate.
        let mut command =
            workspace.cargo(&["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty"]);
        process::run(command.arg("--quiet").arg("--target-dir").arg(&folder))
            .context("a dry run of publishing the workspace")?;
        let mut command = workspace.cargo(&["package", "--no-verify", "--allow-dirty", "--exclude-lockfile"]);
        for package in &published {
            command.args(["--package", &package.name]);
        }
        process::run(command.arg("--quiet").arg("--target-dir").arg(&folder))?;

        let mut packages = Self { folder, unpacked: Vec::new(), largest: 0 };
        for package in published {
            check_metadata(package)?;
            packages.unpack(package).with_context(|| format!("the package of {}", package.name))?;
        }
        Ok(packages)
    }

    /// Where projects that use the packages are built.
    pub(super) fn target(&self) -> PathBuf {
        self.folder.with_file_name("newcomer")
    }

    fn unpack(&mut self, package: &Package) -> Result<()> {
        let name = format!("{}-{}", package.name, package.version);
        let archive = self.folder.join("package").join(format!("{name}.crate"));
        let bytes = archive.metadata().with_context(|| format!("reading {}", archive.display()))?.len();
        if bytes > MOST_BYTES {
            bail!("it has {bytes} bytes; crates.io accepts at most {MOST_BYTES}");
        }
        self.largest = self.largest.max(bytes);
        // With the time of unpacking: cargo gives every file the same, and would not see that one has
        // changed.
        process::run(Command::new("tar").arg("-xzmf").arg(&archive).arg("-C").arg(&self.folder))?;
        let folder = self.folder.join(name);
        check_files(&folder)?;
        self.unpacked.push(Unpacked { name: package.name.to_string(), folder });
        Ok(())
    }
}

/// Whether it has a library, and not only a program: then it has documentation, and versions are compared.
pub(super) fn has_library(package: &Package) -> bool {
    package.targets.iter().any(|target| target.is_lib())
}

/// Whether it is published: `publish = false` is an empty list of registries.
pub(crate) fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// What crates.io and docs.rs show of a crate.
fn check_metadata(package: &Package) -> Result<()> {
    let all_features = package.metadata.pointer("/docs/rs/all-features").and_then(|value| value.as_bool());
    let wanted = [
        ("description", package.description.is_some()),
        ("license", package.license.is_some()),
        ("repository", package.repository.is_some()),
        ("rust-version", package.rust_version.is_some()),
        ("keywords", (1..=5).contains(&package.keywords.len())),
        ("categories", (1..=5).contains(&package.categories.len())),
        ("package.metadata.docs.rs with all-features", all_features == Some(true)),
    ];
    let missing: Vec<_> = wanted.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect();
    if !missing.is_empty() {
        bail!("the manifest of {} lacks {}", package.name, missing.join(", "));
    }
    Ok(())
}

fn check_files(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let names: BTreeSet<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let missing: Vec<_> = FILES.into_iter().filter(|name| !names.contains(*name)).collect();
    if !missing.is_empty() {
        bail!("it lacks {}", missing.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_licences_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["Cargo.toml", "README.md", "LICENSE-MIT", "THIRD-PARTY-NOTICES.md"] {
            fs::write(folder.path().join(name), "text").unwrap();
        }
        assert_eq!(check_files(folder.path()).unwrap_err().to_string(), "it lacks LICENSE-APACHE");
        fs::write(folder.path().join("LICENSE-APACHE"), "text").unwrap();
        assert!(check_files(folder.path()).is_ok());
    }
}
