//! Rust toolchains beside the one that runs us, by rustup.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use cargo_metadata::semver::Version;

use crate::checks::fetched_by_rustup;
use crate::process;

pub(crate) fn cargo(name: &str) -> Command {
    let mut command = Command::new("rustup");
    // What the cargo that runs us has set names the other toolchain.
    command.args(["run", name, "cargo"]).env_remove("CARGO").env_remove("RUSTC");
    command.env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// What the nightly toolchain's compiler prints for `--print`; an error where there is no such toolchain.
pub(crate) fn nightly_prints(what: &str) -> Result<String> {
    let said = process::output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", what]))?;
    Ok(said.trim().to_owned())
}

/// Whether the nightly toolchain has the sources of the standard library.
pub(crate) fn nightly_has_sources() -> Result<bool> {
    let sysroot = nightly_prints("sysroot")?;
    Ok(Path::new(&sysroot).join("lib/rustlib/src/rust/library/Cargo.lock").is_file())
}

/// The installed toolchain of a release; `None` without one. In continuous integration rustup installs it.
pub(crate) fn release(version: &Version) -> Result<Option<String>> {
    let name = format!("{}.{}", version.major, version.minor);
    if let Some(found) = installed(&name)? {
        return Ok(Some(found));
    }
    let exact = version.to_string();
    fetched_by_rustup(&["toolchain", "install", &exact, "--profile", "minimal", "--no-self-update"])?;
    installed(&name)
}

/// Asked by listing, since naming a missing toolchain may download it.
fn installed(name: &str) -> Result<Option<String>> {
    let list = process::output(Command::new("rustup").args(["toolchain", "list"]))?;
    let found = list.lines().find(|line| is_release(line, name));
    Ok(found.and_then(|line| line.split_whitespace().next()).map(str::to_owned))
}

/// Whether a line such as `1.88.0-x86_64-unknown-linux-gnu (default)` names a toolchain of release `1.88`.
fn is_release(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchains_are_recognised_by_release() {
        assert!(is_release("1.88-x86_64-unknown-linux-gnu", "1.88"));
        assert!(is_release("1.88.0-aarch64-apple-darwin (active, default)", "1.88"));
        assert!(!is_release("1.880-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_release("stable-x86_64-unknown-linux-gnu", "1.88"));
    }
}
