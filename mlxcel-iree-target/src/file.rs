//! The files of a bundle.

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
