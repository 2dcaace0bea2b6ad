//! The identity of a compiler: its revision and the content of its files.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use mlxcel_core::{CancelToken, Control, Error, ErrorKind, Result};
use mlxcel_iree_target::Revision;
use sha2::{Digest, Sha256};

use super::Compiler;

/// The identity of a compiler, independent of its location.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Its revision.
    pub revision: Revision,
    /// The SHA-256 sum of its files.
    pub checksum: [u8; 32],
}

/// Files that the program `iree-compile` takes its code from, beside it, or in the `lib` of a distribution.
const COMPANIONS: [&str; 8] = [
    "libIREECompiler.so",
    "libIREECompiler.dylib",
    "IREECompiler.dll",
    "iree-lld",
    "iree-lld.exe",
    "../lib/libIREECompiler.so",
    "../lib/libIREECompiler.dylib",
    "../lib/IREECompiler.dll",
];

impl Compiler {
    /// The files of its code, with links resolved.
    pub fn files(&self) -> Vec<PathBuf> {
        let program = fs::canonicalize(self.path()).unwrap_or_else(|_| self.path().to_owned());
        let beside = program.parent().unwrap_or(Path::new("")).to_owned();
        let companions = COMPANIONS.iter().filter_map(|name| fs::canonicalize(beside.join(name)).ok());
        let mut files: Vec<PathBuf> = std::iter::once(program.clone()).chain(companions).collect();
        // Where a distribution links one to the other, it is read once.
        files[1..].sort();
        files.dedup();
        files
    }

    /// The SHA-256 of the content and names of its files, independent of their location.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] for a file that cannot be read; [`ErrorKind::Cancelled`].
    pub fn checksum(&self, cancel: Option<&CancelToken>) -> Result<[u8; 32]> {
        let operation = "identify the IREE compiler";
        let control = cancel.map(Control::cancelled_by).unwrap_or_default();
        let mut sum = Sha256::new();
        let mut chunk = vec![0; 1 << 20];
        for path in self.files() {
            let unreadable = |source| {
                Error::new(ErrorKind::Toolchain, operation, "a file of the compiler cannot be read")
                    .with_context("path", path.display())
                    .with_source(source)
            };
            let mut file = File::open(&path).map_err(unreadable)?;
            let length = file.metadata().map_err(unreadable)?.len();
            sum.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            sum.update([0]);
            sum.update(length.to_le_bytes());
            loop {
                control.check(operation)?;
                match file.read(&mut chunk).map_err(unreadable)? {
                    0 => break,
                    count => sum.update(&chunk[..count]),
                }
            }
        }
        Ok(sum.finalize().into())
    }
}
