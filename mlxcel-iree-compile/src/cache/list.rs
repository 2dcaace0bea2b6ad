//! Looking into a cache: what it holds, whether that is whole, and making room.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use mlxcel_core::{Error, ErrorKind, Result};

use super::entry;
use super::{Cache, evict};

/// A compiled program in a [`Cache`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// Under what it is filed, as hexadecimal digits.
    pub key: String,
    /// The size of its file.
    pub bytes: u64,
    /// When it was last made, or read by a model that was opened.
    pub last_used: SystemTime,
    /// The program, in words; empty where the file does not say.
    pub program: String,
    /// The target that it is compiled for; empty where the file does not say.
    pub target: String,
    /// What the compiler that made it said it was; empty where the file does not say.
    pub compiler: String,
    path: PathBuf,
}

/// What was removed from a [`Cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// How many entries.
    pub entries: usize,
    /// How many bytes they had.
    pub bytes: u64,
}

impl Cache {
    /// What the cache holds, the entry that was used last being the first.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where the folder cannot be read; a folder that is not there holds nothing.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let stored = evict::entries(folder).map_err(|source| Error::io("list the cache", folder, source))?;
        let described = stored.into_iter().rev().map(|stored| {
            let label = entry::label(&stored.path).unwrap_or_default();
            CacheEntry {
                key: stored.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                bytes: stored.bytes,
                last_used: stored.last_used,
                program: label.program,
                target: label.target,
                compiler: label.compiler,
                path: stored.path,
            }
        });
        Ok(described.collect())
    }

    /// Reads an entry in full and checks that it is what it was when it was written. That counts as no use, and nothing is
    /// removed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] with what is wrong; [`ErrorKind::NotFound`] where it was removed meanwhile.
    pub fn verify(&self, entry: &CacheEntry) -> Result<()> {
        let operation = "verify a compiled program";
        let failed = |kind, message: &'static str| {
            Error::new(kind, operation, message).with_context("path", entry.path.display())
        };
        let verified =
            entry::verify(&entry.path).map_err(|source| Error::io(operation, &entry.path, source))?;
        let key = verified.map_err(|reason| failed(ErrorKind::Corrupt, reason))?;
        if key.name() == entry.key {
            return Ok(());
        }
        Err(failed(ErrorKind::Corrupt, "it is another program's"))
    }

    /// Removes an entry; it is no error when it is gone already.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where it cannot be removed.
    pub fn remove(&self, entry: &CacheEntry) -> Result<()> {
        match fs::remove_file(&entry.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove a compiled program", &entry.path, source))
            }
            _ => Ok(()),
        }
    }

    /// Removes the entries that were not used for the longest time, until at most `bytes` are left. Models that are open
    /// have theirs in memory and do not notice.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where the folder cannot be read.
    pub fn prune(&self, bytes: u64) -> Result<Pruned> {
        let Some(folder) = &self.folder else { return Ok(Pruned::default()) };
        evict::shrink(folder, bytes, |_| false).map_err(|source| Error::io("prune the cache", folder, source))
    }

    /// Removes everything: entries, what killed processes left behind, and notes about compilers.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where the folder cannot be read.
    pub fn clear(&self) -> Result<Pruned> {
        let pruned = self.prune(0)?;
        if let Some(folder) = &self.folder {
            evict::sweep(folder, |_| true);
            self.forget_compilers(folder);
        }
        Ok(pruned)
    }
}
