//! The paths in a manifest, which is an untrusted file.

use std::path::{Component, Path};

use mlxcel_core::{Error, ErrorKind, Result};

use crate::file::OPERATION;

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
