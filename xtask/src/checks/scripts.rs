//! Scripts in the place of a compiler, in `target/quick`: they save time that the tests need not take.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::workspace::{Workspace, program_of_toolchain};

/// What names the IREE compiler.
pub(super) const COMPILER: &str = "MLXCEL_IREE_COMPILER";

/// The compiler which `setup` provides, without the verification between its passes: a quarter of its time,
/// which makes no difference to what it writes. None where another compiler is named, or scripts are not
/// programs.
pub(super) fn compiler_without_verification(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let real = workspace.toolchain().join("bin/iree-compile");
    let is_other = |named| fs::canonicalize(named).ok() != fs::canonicalize(&real).ok();
    if cfg!(not(unix)) || env::var_os(COMPILER).is_some_and(is_other) {
        return Ok(None);
    }
    let text = format!("exec '{}' --verify=false \"$@\"\n", real.display());
    write(workspace, "iree-compile", &text).map(Some)
}

/// rustdoc that makes a crate's documentation, with warnings as errors, after it has run the crate's tests:
/// what cargo tells it for the one does for the other, and `cargo doc` would check every crate once more. None
/// where scripts are not programs.
pub(super) fn documenting_rustdoc(workspace: &Workspace) -> Result<Option<PathBuf>> {
    if cfg!(not(unix)) {
        return Ok(None);
    }
    let real = program_of_toolchain("rustdoc");
    let text = format!(
        r#"rustdoc='{}'
"$rustdoc" "$@" || exit
case " $* " in *" --test "*) ;; *) exit ;; esac
value=
for argument do
    shift
    case "$value$argument" in
        --test) ;;
        --test-run-directory) value=skipped ;;
        skipped*) value= ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "$rustdoc" "$@" --deny warnings --out-dir '{}'
"#,
        real.display(),
        target(workspace)?.join("doc").display()
    );
    write(workspace, "rustdoc", &text).map(Some)
}

fn target(workspace: &Workspace) -> Result<PathBuf> {
    Ok(workspace.metadata()?.target_directory.into_std_path_buf())
}

/// Writes a script for sh.
fn write(workspace: &Workspace, name: &str, text: &str) -> Result<PathBuf> {
    let folder = target(workspace)?.join("quick");
    let script = folder.join(name);
    let text = format!("#!/bin/sh\n{text}");
    // What stays the same need not be identified again.
    if !fs::read(&script).is_ok_and(|kept| kept == text.as_bytes()) {
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&script, text))
            .with_context(|| format!("writing {}", script.display()))?;
        process::run(Command::new("chmod").arg("755").arg(&script))?;
    }
    Ok(script)
}
