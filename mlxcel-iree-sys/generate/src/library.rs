//! The archive under IREE's own names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::compile;

/// Compiles files of IREE into `folder/libNAME.a`.
pub(super) fn compile(root: &Path, files: &[String], name: &str, folder: &Path) -> Result<PathBuf> {
    let host = host()?;
    // Environment variables of a build script, which select the compiler.
    let mut build = compile::runtime(root, false, Some(&host));
    build.files(files.iter().map(|file| root.join("iree").join(file)));
    build.out_dir(folder);
    build.try_compile(name).with_context(|| format!("compiling IREE into {}", folder.display()))?;
    Ok(folder.join(format!("lib{name}.a")))
}

/// The platform that this program runs on, as rustc calls it.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("starting rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = said.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    Ok(host.to_owned())
}
