//! What the build script of mlxcel-iree refuses, and that it says the way out.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::VARIABLE;

/// Shows the build script what it must refuse; the number of cases.
pub(super) fn check(script: &Path, distribution: &Path) -> Result<usize> {
    let folder = tempfile::tempdir().context("making a folder")?;
    let copy = |name: &str| -> Result<_> {
        let copy = folder.path().join(name);
        let include = copy.join("include/iree/hal");
        fs::create_dir_all(&include).context("creating a distribution")?;
        fs::create_dir_all(copy.join("lib")).context("creating a distribution")?;
        for file in ["lib/libiree_runtime_unified.a", "lib/libflatcc_parsing.a", "include/iree/hal/api.h"] {
            fs::copy(distribution.join(file), copy.join(file)).with_context(|| format!("copying {file}"))?;
        }
        Ok(copy)
    };
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).context("creating a folder")?;
    let incomplete = copy("incomplete")?;
    fs::remove_file(incomplete.join("lib/libflatcc_parsing.a")).context("removing a library")?;
    let older = copy("older")?;
    fs::write(older.join("version.json"), "{\"package-version\": \"3.12.0\"}")
        .context("writing a version")?;
    let newer = copy("newer")?;
    fs::write(newer.join("version.json"), "{\"package-version\": \"3.13.01\"}")
        .context("writing a version")?;
    let nameless = copy("nameless")?;
    let headless = copy("headless")?;
    fs::copy(distribution.join("version.json"), headless.join("version.json"))
        .context("copying the version")?;

    let cases: [(Option<&Path>, &[&str]); 7] = [
        (None, &[VARIABLE, "3.13.0", "`vendored`"]),
        (
            Some(&empty),
            &["lib/libiree_runtime_unified.a", "lib/libflatcc_parsing.a", "include/iree/hal/api.h"],
        ),
        (Some(&incomplete), &["lib/libflatcc_parsing.a missing"]),
        (Some(&older), &["IREE 3.12.0", "3.13.0"]),
        (Some(&newer), &["IREE 3.13.01", "3.13.0"]),
        (Some(&nameless), &["does not say which release", "version.json"]),
        (Some(&headless), &["lacks the header iree/base/api.h"]),
    ];
    for (distribution, words) in &cases {
        refuses(script, *distribution, folder.path(), words)
            .with_context(|| format!("with {VARIABLE} at {distribution:?}"))?;
    }
    Ok(cases.len())
}

/// Runs the script, which must fail with an error for cargo that has all of `words`.
fn refuses(script: &Path, distribution: Option<&Path>, out: &Path, words: &[&str]) -> Result<()> {
    let mut command = Command::new(script);
    command.env("OUT_DIR", out).env("CARGO_CFG_TARGET_OS", std::env::consts::OS).env_remove(VARIABLE);
    if let Some(distribution) = distribution {
        command.env(VARIABLE, distribution);
    }
    let output = command.stdin(Stdio::null()).output().context("starting the build script")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors: String = said.lines().filter_map(|line| line.strip_prefix("cargo::error=")).collect();
    if output.status.success() {
        bail!("the build script took it");
    }
    match words.iter().find(|word| !errors.contains(*word)) {
        Some(word) => bail!(
            "the build script's words lack {word:?}: {errors}{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        None => Ok(()),
    }
}
