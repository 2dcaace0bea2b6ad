//! Host memory that local devices compute in: zeroed, aligned as generated code expects, owned by Rust.

use std::fs::File;
use std::io;
use std::thread;

use memmap2::{Mmap, MmapMut};
use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_target::threads::share_out;

/// The alignment, in bytes, that generated code assumes of every argument (`IREE_HAL_HEAP_BUFFER_ALIGNMENT`).
pub const ALIGNMENT: usize = 64;

/// Allocations of at least this size are separate mappings: unwritten pages take no memory, and all of it
/// goes back to the system when it is dropped.
const MAPPED_FROM: usize = 1 << 20;

/// From here on a copy is shared out to several threads.
const PARALLEL_FROM: usize = 16 << 20;

/// Zeroed memory whose first byte is aligned to [`ALIGNMENT`].
pub struct HostMemory(Place);

enum Place {
    /// Small: from the heap, from the first aligned byte on.
    Heap { bytes: Vec<u8>, start: usize, len: usize },
    /// Large: an anonymous mapping, aligned to a page.
    Mapped(MmapMut),
}

impl HostMemory {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceExhausted`].
    pub fn zeroed(len: usize) -> Result<Self> {
        if len >= MAPPED_FROM {
            let map = MmapMut::map_anon(len).map_err(|source| {
                Error::new(ErrorKind::ResourceExhausted, "allocate a buffer", "out of memory")
                    .with_context("bytes", len)
                    .with_source(source)
            })?;
            return Ok(Self(Place::Mapped(map)));
        }
        let bytes = vec![0; len + ALIGNMENT - 1];
        let start = (ALIGNMENT - bytes.as_ptr().addr() % ALIGNMENT) % ALIGNMENT;
        Ok(Self(Place::Heap { bytes, start, len }))
    }

    /// `len` zeroed bytes that are about to be written, all of them: large ones are allocated in huge pages,
    /// which saves most of the page faults now and most of the address translation in every later pass
    /// over them.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceExhausted`].
    pub fn for_filling(len: usize) -> Result<Self> {
        Ok(Self::zeroed(len)?.in_huge_pages(true))
    }

    /// `len` zeroed bytes that are written over time and perhaps never all of them: where the system gives
    /// huge pages unasked, it is configured not to, since the first byte written to one would take two
    /// megabytes.
    pub(crate) fn for_growing(len: usize) -> Result<Self> {
        Ok(Self::zeroed(len)?.in_huge_pages(false))
    }

    /// The same in pages of this kind. A hint: where the kernel does not follow it, all else is the same.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    fn in_huge_pages(self, huge: bool) -> Self {
        #[cfg(target_os = "linux")]
        if let Place::Mapped(map) = &self.0 {
            let _ = map.advise(if huge { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage });
        }
        self
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Place::Heap { bytes, start, len } => &mut bytes[*start..*start + *len],
            Place::Mapped(map) => map,
        }
    }
}

/// The content of a file that is not changed while it is mapped: read-only pages, which processes share.
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps all of `file`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: The map is private to this type, read-only, and handed out as `&[u8]` that borrows it. What
        // the type system cannot rule out is another process that writes to or truncates the file
        // meanwhile; as of a checkpoint's weights, the docs of bundles demand that files are not
        // modified while a model is open.
        let map = unsafe { Mmap::map(file)? };
        #[cfg(target_os = "linux")]
        // A hint: what is not in the page cache yet is read in huge pages, where the file system has them.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self(map))
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The pages in which `len` zeroed bytes take memory as they are written; none where they are from the heap.
pub(crate) fn page_of(len: usize) -> Option<usize> {
    #[cfg(unix)]
    let page = rustix::param::page_size();
    #[cfg(not(unix))]
    let page = 4096;
    (len >= MAPPED_FROM).then_some(page)
}

impl AsRef<[u8]> for HostMemory {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Place::Heap { bytes, start, len } => &bytes[*start..*start + *len],
            Place::Mapped(map) => map,
        }
    }
}

/// How many threads copy `bytes`: a large copy into fresh memory takes several, because one thread spends it
/// on page faults.
pub fn copying_threads(bytes: usize) -> usize {
    if bytes < PARALLEL_FROM { 1 } else { thread::available_parallelism().map_or(1, usize::from).min(8) }
}

/// Copies `source` over `target`, which is as long.
pub(crate) fn copy(target: &mut [u8], source: &[u8]) -> Result<()> {
    let threads = copying_threads(source.len());
    if threads == 1 {
        target.copy_from_slice(source);
        return Ok(());
    }
    let share = source.len().div_ceil(threads).next_multiple_of(ALIGNMENT);
    let parts: Vec<_> = target.chunks_mut(share).zip(source.chunks(share)).collect();
    share_out("copy", threads, parts, |(target, source)| {
        target.copy_from_slice(source);
        Ok(())
    })
}
