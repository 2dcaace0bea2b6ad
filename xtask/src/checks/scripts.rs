//! A script in the place of a compiler, in `target/quick`: it saves time that the tests need not take.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::workspace::{Workspace, program_of_toolchain};

/// rustdoc that makes a crate's documentation, with warnings as errors, after it has run the crate's tests:
/// what cargo tells it for the one does for the other, and `cargo doc` would check every crate once more. None
/// where scripts are not programs.
pub(super) fn documenting_rustdoc(workspace: &Workspace) -> Result<Option<PathBuf>> {
    if cfg!(not(unix)) {
        return Ok(None);
    }
    let real = program_of_toolchain("rustdoc");
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    let text = format!(
        r#"#!/bin/sh
rustdoc='{}'
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
        target.join("doc").display()
    );
    let folder = target.join("quick");
    let script = folder.join("rustdoc");
    // What stays the same need not be identified again.
    if !fs::read(&script).is_ok_and(|kept| kept == text.as_bytes()) {
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&script, text))
            .with_context(|| format!("writing {}", script.display()))?;
        process::run(Command::new("chmod").arg("755").arg(&script))?;
    }
    Ok(Some(script))
}
