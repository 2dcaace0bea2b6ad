//! A distribution from a build of IREE, as `cmake --install` would make it.
//!
//! Within eerie-sys IREE is a part of another CMake project, whose installation has no place for headers; so the rules
//! are read, and followed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// The build tree below eerie-sys's output folder.
const BUILD: &str = "runtime_build/hosted/build";
/// Lists the objects of the runtime's one library, relative to [`BUILD`], in a file of the build's configuration.
const UNIFIED: &str = "iree/runtime/src/iree/runtime";
const FLATCC: &str = "iree/build_tools/third_party/flatcc/libflatcc_parsing.a";
/// Says what a distribution was made from; one that is made from the same is left as it is.
const STAMP: &str = "laid-out-from";
/// The version, as IREE's sources state it.
const VERSION: &str = "{\"package-version\": \"3.13.0\"}\n";

/// Makes `distribution` from the build in eerie-sys's output folder `out`.
pub(super) fn lay_out(out: &Path, distribution: &Path) -> Result<()> {
    let build = out.join(BUILD);
    let built = fs::metadata(build.join(FLATCC))
        .and_then(|file| file.modified())
        .with_context(|| format!("there is no build of IREE in {}", out.display()))?;
    let stamp = format!("{} {built:?}", build.display());
    if fs::read_to_string(distribution.join(STAMP)).is_ok_and(|found| found == stamp) {
        return Ok(());
    }
    match fs::remove_dir_all(distribution) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", distribution.display()));
        }
        _ => {}
    }
    let lib = distribution.join("lib");
    fs::create_dir_all(&lib).with_context(|| format!("creating {}", lib.display()))?;
    install_headers(&build, &distribution.join("include"))?;
    unite(&build, &lib.join("libiree_runtime_unified.a"))?;
    fs::copy(build.join(FLATCC), lib.join("libflatcc_parsing.a")).context("copying flatcc's library")?;
    fs::write(distribution.join("version.json"), VERSION).context("writing the version")?;
    fs::write(distribution.join(STAMP), stamp).context("writing the stamp")
}

/// Copies the headers for which there is an install rule.
fn install_headers(build: &Path, include: &Path) -> Result<()> {
    let mut copied = 0;
    for script in files_named(build, "cmake_install.cmake")? {
        let text = fs::read_to_string(&script).with_context(|| format!("reading {}", script.display()))?;
        for (destination, header) in text.lines().filter_map(rule) {
            // Generated files that nothing which was built needs are not there.
            if !Path::new(header).is_file() {
                continue;
            }
            let folder = include.join(destination);
            fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
            let name = Path::new(header).file_name().context("a header without a name")?;
            fs::copy(header, folder.join(name)).with_context(|| format!("copying {header}"))?;
            copied += 1;
        }
    }
    if copied == 0 {
        bail!("no install rule for a header was found in {}", build.display());
    }
    Ok(())
}

/// Destination (relative to `include/`) and file of a line such as
/// `file(INSTALL DESTINATION "/iree/base" TYPE FILE FILES "/…/iree/base/api.h")`.
fn rule(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once("file(INSTALL DESTINATION \"")?;
    let (destination, rest) = rest.split_once("\" TYPE FILE FILES \"")?;
    let (file, _) = rest.split_once('"')?;
    let relative = destination.trim_start_matches('/');
    relative.starts_with("iree").then_some((relative, file))
}

/// Puts the objects that the build lists for the runtime's one library into `library`.
fn unite(build: &Path, library: &Path) -> Result<()> {
    let folder = build.join(UNIFIED);
    let list = fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| is_list(path))
        .with_context(|| format!("{} has no list of the runtime's objects", folder.display()))?;
    let text = fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let objects: Vec<_> = text.split([';', '\n']).filter(|word| is_object(word)).collect();
    if objects.is_empty() {
        bail!("{} lists no objects", list.display());
    }
    process::run(Command::new("ar").arg("qcs").arg(library).args(objects))
}

/// Whether a file is `unified.CONFIGURATION.contents.txt`.
fn is_list(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("unified.") && name.ends_with(".contents.txt")
}

fn is_object(word: &str) -> bool {
    let extension = Path::new(word).extension();
    extension.is_some_and(|extension| extension == "o" || extension == "obj")
}

fn files_named(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.file_name() == name {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_headers_are_read() {
        let line = "  file(INSTALL DESTINATION \"/iree/base\" TYPE FILE FILES \"/src/iree/base/api.h\")";
        assert_eq!(rule(line), Some(("iree/base", "/src/iree/base/api.h")));
        assert_eq!(
            rule("  file(INSTALL DESTINATION \"/lib/cmake/IREE\" TYPE FILE FILES \"/x.cmake\")"),
            None
        );
        assert_eq!(rule("  file(INSTALL DESTINATION \"/lib\" TYPE STATIC_LIBRARY FILES \"/x.a\")"), None);
        assert_eq!(rule("endif()"), None);
    }

    #[test]
    fn objects_are_told_from_other_words() {
        assert!(is_object("/build/call.c.o"));
        assert!(!is_object("LIBS:") && !is_object("flatcc::parsing") && !is_object(""));
    }
}
