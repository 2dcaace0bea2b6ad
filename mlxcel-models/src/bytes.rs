//! The bytes of one file: mapped from disk, or part of the application's binary.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// A file's content, reachable without having been copied.
pub(crate) enum FileBytes {
    /// Mapped read-only; pages come from the disk when they are first read.
    Mapped(Mmap),
    /// Embedded in the binary.
    Embedded(&'static [u8]),
}

impl FileBytes {
    /// Maps an open file, which must not be empty.
    #[allow(unsafe_code, reason = "the crate's only unsafe code: mapping a file")]
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: The map is private to this type, read-only, and handed out as `&[u8]` that borrows it. What the
        // type system cannot rule out is another process that writes to or truncates the file meanwhile; the docs
        // of `Checkpoint` demand that weights are not modified while they are open. Headers are parsed once, into
        // memory of our own, and all later offsets are within the length that was mapped.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self::Mapped(map))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}
