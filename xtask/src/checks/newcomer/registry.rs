//! A local replacement of crates.io: our packages and copies of their dependencies.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::checks::packages::Packages;
use crate::process;
use crate::workspace::Workspace;

/// What a newcomer depends on, with all that any feature needs.
const MANIFEST: &str = r#"
[package]
name = "dependencies"
version = "0.0.0"
edition = "2024"

[lib]
path = "lib.rs"

[workspace]

[dependencies]
axum = "0.8"
futures-util = "0.3"
mlxcel-conformance = "0.1.0"
mlxcel-session = { version = "0.1.0", features = ["async", "iree", "mlx"] }
tokio = { version = "1", features = ["io-util"] }
"#;

/// How the projects are compiled: quickly, and optimized only where the portable engine computes, which would
/// take minutes for a story.
const PROFILE: &str = r#"
[profile.dev]
debug = 0

[profile.dev.package.mlxcel-portable]
opt-level = 2
"#;

pub(super) struct Registry {
    folder: PathBuf,
}

impl Registry {
    /// Has cargo copy the dependencies, of the versions that the workspace is tested with, and puts the
    /// packages beside them.
    pub(super) fn make(workspace: &Workspace, packages: &Packages) -> Result<Self> {
        let project = packages.folder.join("dependencies");
        fs::create_dir(&project).with_context(|| format!("making {}", project.display()))?;
        let mut manifest = MANIFEST.to_owned();
        manifest.push_str("\n[patch.crates-io]\n");
        for package in &packages.unpacked {
            // A TOML string takes most of what a path may hold in single quotes.
            manifest.push_str(&format!("{} = {{ path = '{}' }}\n", package.name, package.folder.display()));
        }
        let written = fs::write(project.join("Cargo.toml"), manifest)
            .and_then(|()| fs::write(project.join("lib.rs"), ""))
            .and_then(|()| fs::copy(workspace.root().join("Cargo.lock"), project.join("Cargo.lock")));
        written.with_context(|| format!("writing into {}", project.display()))?;

        let folder = packages.folder.join("registry");
        let mut command = workspace.cargo(&["vendor", "--quiet", "--manifest-path"]);
        command.arg(project.join("Cargo.toml")).arg(&folder);
        // It prints the configuration, which `configure` writes.
        process::output(&mut command).context("copying the dependencies")?;
        for package in &packages.unpacked {
            let place = folder.join(&package.name);
            fs::rename(&package.folder, &place)
                .with_context(|| format!("moving {} into the registry", package.name))?;
            fs::write(place.join(".cargo-checksum.json"), r#"{"files":{}}"#)
                .with_context(|| format!("writing into {}", place.display()))?;
        }
        Ok(Self { folder })
    }

    /// Lets cargo take packages from here in `folder` and below.
    pub(super) fn configure(&self, folder: &Path) -> Result<()> {
        let config = format!(
            "[source.crates-io]\nreplace-with = 'packaged'\n\n[source.packaged]\ndirectory = '{}'\n{PROFILE}",
            self.folder.display()
        );
        let place = folder.join(".cargo");
        fs::create_dir(&place)
            .and_then(|()| fs::write(place.join("config.toml"), config))
            .with_context(|| format!("writing into {}", place.display()))
    }
}
