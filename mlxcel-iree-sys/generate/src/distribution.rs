//! A distribution of the runtime, in the form of IREE's own: what the feature `dist` is tested with.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::library;
use crate::sources::{Selection, files};

/// The version, as IREE's sources state it.
const VERSION: &str = "{\"package-version\": \"3.13.0\"}\n";

/// Writes archives and version.
pub(super) fn write(root: &Path, out: &Path) -> Result<()> {
    if cfg!(windows) {
        bail!("a distribution is laid out on Linux and macOS only");
    }
    let selection = Selection {
        system: std::env::consts::OS,
        msvc: false,
        architecture: std::env::consts::ARCH,
        cuda: false,
        vulkan: false,
    };
    let (flatcc, runtime): (Vec<_>, Vec<_>) =
        files(selection).into_iter().partition(|file| file.starts_with("third_party/flatcc"));
    let objects = tempfile::tempdir().context("making a folder")?;
    let lib = out.join("lib");
    fs::create_dir_all(&lib).with_context(|| format!("creating {}", lib.display()))?;
    for (name, files) in [("iree_runtime_unified", runtime), ("flatcc_parsing", flatcc)] {
        let archive = library::compile(root, &files, name, objects.path())?;
        fs::copy(&archive, lib.join(format!("lib{name}.a"))).with_context(|| format!("copying {name}"))?;
    }
    fs::write(out.join("version.json"), VERSION).context("writing the version")
}
