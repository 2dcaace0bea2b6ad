//! What the build script says where MLX is missing or another release, and which of several it takes.

#[path = "../build/locate.rs"]
#[allow(dead_code, reason = "the build script uses the rest")]
mod locate;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use locate::{Mlx, RELEASE};
use tempfile::TempDir;

/// A folder as MLX's wheel for Linux has it, or for macOS.
fn installation(release: &str, library: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let include = folder.path().join("include/mlx");
    fs::create_dir_all(&include).unwrap();
    fs::create_dir(folder.path().join("lib")).unwrap();
    let mut parts = release.split('.');
    let mut header = String::from("#pragma once\n\n");
    for name in ["MAJOR", "MINOR", "PATCH"] {
        header.push_str(&format!("#define MLX_VERSION_{name} {}\n", parts.next().unwrap()));
    }
    fs::write(include.join("version.h"), header).unwrap();
    fs::write(folder.path().join("lib").join(library), "").unwrap();
    folder
}

fn named(path: &Path) -> Option<OsString> {
    Some(path.as_os_str().to_owned())
}

fn no_packages() -> Vec<PathBuf> {
    Vec::new()
}

fn says_what_to_install(message: &str) {
    for part in [
        "pip install \"mlx[cpu]==0.32.4\"",
        "mlx[cuda12]==0.32.4",
        "pip install \"mlx==0.32.4\"",
        "MLXCEL_MLX_DIR",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_missing_mlx_error_says_what_to_install() {
    let message = Mlx::find(None, no_packages).unwrap_err();
    assert!(message.starts_with("MLX is not installed"), "{message}");
    says_what_to_install(&message);
}

#[test]
fn a_configured_folder_without_mlx_is_an_error() {
    let (empty, good) = (tempfile::tempdir().unwrap(), installation(RELEASE, "libmlx.so"));
    let message = Mlx::find(named(empty.path()), || vec![good.path().to_owned()]).unwrap_err();
    assert!(message.contains(&*empty.path().to_string_lossy()) && message.contains("version.h"), "{message}");
    says_what_to_install(&message);
}

#[test]
fn another_release_is_rejected_with_the_required_one() {
    let old = installation("0.31.2", "libmlx.so");
    for message in [
        Mlx::find(named(old.path()), no_packages).unwrap_err(),
        Mlx::find(None, || vec![old.path().to_owned()]).unwrap_err(),
    ] {
        assert!(message.contains("release 0.31.2, and 0.32.4 is needed"), "{message}");
        says_what_to_install(&message);
    }
}

#[test]
fn headers_without_a_library_are_not_an_installation() {
    let folder = installation(RELEASE, "libother.so");
    let message = Mlx::find(named(folder.path()), no_packages).unwrap_err();
    assert!(message.contains("libmlx.so is missing"), "{message}");
}

#[test]
fn the_configured_folder_precedes_python_and_complete_packages_precede_partial_ones() {
    let (first, second) = (installation(RELEASE, "libmlx.so"), installation(RELEASE, "libmlx.dylib"));
    let part = tempfile::tempdir().unwrap();
    let folders = || vec![part.path().to_owned(), second.path().to_owned()];
    let library =
        |mlx: Mlx| mlx.library().strip_prefix(mlx.library().ancestors().nth(2).unwrap()).unwrap().to_owned();

    let found = Mlx::find(named(first.path()), folders).unwrap();
    assert_eq!(library(found), Path::new("lib/libmlx.so"));
    // An empty variable is how a shell says that it is not set.
    let found = Mlx::find(Some(OsString::new()), folders).unwrap();
    assert_eq!(found.include(), second.path().canonicalize().unwrap().join("include"));
    assert_eq!(library(found), Path::new("lib/libmlx.dylib"));
}
