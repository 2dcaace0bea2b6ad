//! Which release a distribution is.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::IREE_VERSION;

/// The file in which IREE's sources state their version; at the top of a distribution it goes before its
/// compiler's word.
const FILE: &str = "version.json";
/// The program of a distribution that prints its version.
const COMPILER: &str = if cfg!(windows) { "bin/iree-compile.exe" } else { "bin/iree-compile" };

/// Refuses a distribution of another release, or one that does not say which it is.
pub(crate) fn check(distribution: &Path) -> Result<(), String> {
    let (found, by) = stated(distribution)?;
    if is_wanted(&found) {
        return Ok(());
    }
    Err(format!(
        "the distribution in {} is IREE {found} (says {by}); mlxcel-iree {} is written against {IREE_VERSION}: get \
         iree-dist-{IREE_VERSION} from IREE's releases",
        distribution.display(),
        env!("CARGO_PKG_VERSION"),
    ))
}

/// The version, and what states it.
fn stated(distribution: &Path) -> Result<(String, &'static str), String> {
    let file = distribution.join(FILE);
    println!("cargo::rerun-if-changed={}", file.display());
    if file.is_file() {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        return match package_version(&text) {
            Some(version) => Ok((version, FILE)),
            None => Err(format!("{} has no \"package-version\"", file.display())),
        };
    }
    let compiler = distribution.join(COMPILER);
    let said = Command::new(&compiler).arg("--version").output();
    let version = said.ok().and_then(|said| compiler_version(&String::from_utf8_lossy(&said.stdout)));
    version.map(|version| (version, COMPILER)).ok_or_else(|| {
        format!(
            "the distribution in {} does not say which release it is: it has no {FILE}, and no {COMPILER} that runs here. \
             If it is IREE {IREE_VERSION}, write {{\"package-version\": \"{IREE_VERSION}\"}} into its {FILE}",
            distribution.display()
        )
    })
}

/// The release itself, or a build of it that says more: `3.13.0rc20261016`, `3.13.0.dev`.
fn is_wanted(version: &str) -> bool {
    version.strip_prefix(IREE_VERSION).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The value of `"package-version"` in a JSON object of texts.
fn package_version(json: &str) -> Option<String> {
    let (_, rest) = json.split_once("\"package-version\"")?;
    let value = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    Some(value.split_once('"')?.0.to_owned())
}

/// The version in what `iree-compile --version` prints.
fn compiler_version(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("IREE compiler version ")?;
    rest.split_whitespace().next().map(str::to_owned)
}
