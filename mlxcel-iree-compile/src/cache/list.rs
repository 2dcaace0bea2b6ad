//! Lists, verifies and prunes the entries of a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mlxcel_core::{Error, ErrorKind, Result};

use super::{Cache, KINDS, WEIGHTS};
use super::{entry, evict, note, schedules, weights};

/// A compiled program in a [`Cache`], or the weights of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// The cache key, in hexadecimal digits.
    pub key: String,
    /// The size of its file.
    pub bytes: u64,
    /// When it was last written, or read for opening a model.
    pub last_used: SystemTime,
    /// A description of the program or of the weights; empty if the file has none.
    pub program: String,
    /// The compile target; empty if the file has none.
    pub target: String,
    /// The compiler's revision; empty if the file has none.
    pub compiler: String,
    path: PathBuf,
}

/// The result of pruning a [`Cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of removed entries.
    pub entries: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

fn is_weights(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(WEIGHTS))
}

impl Cache {
    /// The entries, most recently used first.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the folder cannot be read; a missing folder has no entries.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let stored =
            evict::entries(folder, &KINDS).map_err(|source| Error::io("list the cache", folder, source))?;
        let described = stored.into_iter().rev().map(|stored| {
            let label = if is_weights(&stored.path) { weights::label } else { entry::label };
            let label = label(&stored.path).unwrap_or_default();
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

    /// Reads an entry fully and verifies its checksum. This does not count as a use, and removes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged; [`ErrorKind::NotFound`] if it was removed meanwhile.
    pub fn verify(&self, entry: &CacheEntry) -> Result<()> {
        let operation = "verify a compiled program";
        let checked = if is_weights(&entry.path) {
            weights::verify(&entry.path)
        } else {
            entry::verify(&entry.path, &entry.key)
        };
        let checked = checked.map_err(|source| Error::io(operation, &entry.path, source))?;
        checked.map_err(|reason| {
            Error::new(ErrorKind::Corrupt, operation, reason).with_context("path", entry.path.display())
        })
    }

    /// Removes an entry; not an error if it is already gone.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be removed.
    pub fn remove(&self, entry: &CacheEntry) -> Result<()> {
        match fs::remove_file(&entry.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove a compiled program", &entry.path, source))
            }
            _ => Ok(()),
        }
    }

    /// Removes the least recently used entries until at most `bytes` are left. Open models are unaffected:
    /// they hold their programs in memory, and the disk's blocks of weights that they have mapped are free
    /// once they are closed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the folder cannot be read.
    pub fn prune(&self, bytes: u64) -> Result<Pruned> {
        let Some(folder) = &self.folder else { return Ok(Pruned::default()) };
        evict::shrink(folder, &KINDS, bytes, |_| false)
            .map_err(|source| Error::io("prune the cache", folder, source))
    }

    /// Removes everything: entries, leftovers of killed processes, measured schedules, and notes about
    /// compilers.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the folder cannot be read.
    pub fn clear(&self) -> Result<Pruned> {
        let pruned = self.prune(0)?;
        if let Some(folder) = &self.folder {
            evict::sweep(folder, |_| true);
            for kept in [note::FOLDER, schedules::FOLDER] {
                // What cannot be removed is as right as before.
                let _ = fs::remove_dir_all(folder.join(kept));
            }
        }
        Ok(pruned)
    }
}
