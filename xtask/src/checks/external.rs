//! Packages outside the workspace, in `tests-external/`, built as an application of a user is.
//!
//! They are built from a folder above which there is no `.cargo/config.toml` of ours, so what they need is
//! named in the environment, as the README tells a user to. They share the workspace's target folder, profile
//! and versions: what is compiled already is not compiled again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};

use crate::workspace::{Workspace, cargo_program};

/// The bundled checkpoint.
pub(super) const MODEL: &str = "examples/models/storyteller";

pub(super) struct External {
    manifest: PathBuf,
    outside: PathBuf,
    target: PathBuf,
}

impl External {
    pub(super) fn prepare(workspace: &Workspace, name: &str, outside: &Path, target: &Path) -> Result<Self> {
        let folder = workspace.root().join("tests-external").join(name);
        // The versions that the workspace is tested with; cargo drops what is not needed.
        fs::copy(workspace.root().join("Cargo.lock"), folder.join("Cargo.lock"))
            .with_context(|| format!("giving {name} the lock file of the workspace"))?;
        Ok(Self {
            manifest: folder.join("Cargo.toml"),
            outside: outside.to_path_buf(),
            target: target.to_path_buf(),
        })
    }

    pub(super) fn cargo(&self, subcommand: &str) -> Command {
        self.by_cargo(Command::new(cargo_program()), subcommand)
    }

    /// The same by another cargo than the one that runs this program.
    pub(super) fn by_cargo(&self, mut command: Command, subcommand: &str) -> Command {
        command.arg(subcommand).arg("--manifest-path").arg(&self.manifest).current_dir(&self.outside);
        command.env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// A program with the IREE engine must not export a symbol of IREE's or of ours: a library that it loads
/// would bind to it.
pub(super) fn exports_nothing(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("parsing {}", program.display()))?;
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let names = symbols.filter_map(|symbol| symbol.name().ok()).filter(|name| name.contains("iree"));
    let names: BTreeSet<_> = names.collect();
    if let Some(name) = names.first() {
        bail!("{} exports {name} and {} further names of IREE's", program.display(), names.len() - 1);
    }
    Ok(())
}
