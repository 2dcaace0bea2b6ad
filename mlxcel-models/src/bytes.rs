//! The bytes of one file: mapped from disk, or embedded in the application's binary.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::time::SystemTime;

use memmap2::Mmap;
use mlxcel_core::{Error, Result};

use crate::files;

/// A file's content, reachable without having been copied.
pub(crate) enum FileBytes {
    /// Mapped read-only, pages are read from disk on first access; and when the file was last written.
    Mapped(Mmap, Option<SystemTime>),
    /// Embedded in the binary.
    Embedded(&'static [u8]),
    /// Computed from other bytes.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps the regular file at `path`; none where there is nothing.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        match files::open(path, path)? {
            None => Ok(None),
            // An empty file cannot be mapped everywhere; its content is known.
            Some((_, 0)) => Ok(Some(Self::Embedded(&[]))),
            Some((file, _)) => {
                Self::map(&file).map(Some).map_err(|error| Error::io("open checkpoint", path, error))
            }
        }
    }

    /// Maps an open file, which must not be empty.
    #[allow(unsafe_code, reason = "the crate's only unsafe code: mapping a file")]
    fn map(file: &File) -> io::Result<Self> {
        // SAFETY: The map is private to this type, read-only, and handed out as `&[u8]` that borrows it. What
        // the type system cannot rule out is another process that writes to or truncates the file
        // meanwhile; the docs of `Checkpoint` demand that weights are not modified while they are
        // open. Headers are parsed once, into memory of our own, and all later offsets are within the
        // length that was mapped.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self::Mapped(map, file.metadata()?.modified().ok()))
    }

    /// When the file was last written, as far as the system says.
    pub(crate) fn written(&self) -> Option<SystemTime> {
        match self {
            Self::Mapped(_, written) => *written,
            Self::Embedded(_) | Self::Owned(_) => None,
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Embedded(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}
