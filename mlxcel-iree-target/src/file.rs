//! The files of a bundle, as its manifest lists them, which is an untrusted file.

use std::path::{Component, Path};

use mlxcel_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The operation in errors of reading a bundle.
pub const OPERATION: &str = "read bundle";

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileEntry {
    /// Its path relative to the bundle's folder, with `/` as separator.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

impl FileEntry {
    /// The file at `path` with this size and SHA-256 in hexadecimal digits.
    pub fn new(path: String, bytes: u64, sha256: String) -> Self {
        Self { path, bytes, sha256 }
    }
}

/// Rejects a path that escapes the bundle's folder on any system.
///
/// # Errors
/// [`ErrorKind::Corrupt`], naming it.
pub fn check_path(path: &str) -> Result<()> {
    let inside = !path.is_empty()
        && !path.contains(['\\', ':', '\0'])
        && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
    if inside {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, OPERATION, "the manifest names a file outside of the bundle")
        .with_context("file", path.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_inside_the_folder_are_accepted() {
        for path in ["a", "programs/llvm-cpu-znver4/64+1@256.vmfb", "..a/b.."] {
            check_path(path).unwrap();
        }
        for path in
            ["", "/etc/passwd", "../x", "a/../../x", "a/..", "./a", "C:\\x", "a\\b", "c:x", "a\0b", "//x"]
        {
            assert_eq!(check_path(path).unwrap_err().kind(), ErrorKind::Corrupt, "{path}");
        }
    }
}
