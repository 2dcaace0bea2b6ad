//! Compiled programs on disk, filed under the content of everything that they were made from.

mod entry;
mod key;
mod lock;

#[cfg(test)]
mod tests;

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use etcetera::BaseStrategy;
use mlxcel_core::{CancelToken, Error, Result};

use crate::compiler::Revision;
use entry::Entry;
pub(crate) use key::{Key, ProgramSum};
use key::{Parts, hex};
use lock::Lock;

/// The variable that names the folder of mlxcel's caches.
const FOLDER_VARIABLE: &str = "MLXCEL_CACHE_DIR";

/// A folder of compiled programs.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    /// None where this system has no place for one.
    folder: Option<PathBuf>,
    /// Whether somebody named the folder: then it has to be usable.
    named: bool,
}

impl Cache {
    /// The cache in `folder` if it is given, else in `iree` under the folder that `MLXCEL_CACHE_DIR` names, else in
    /// `mlxcel/iree` under the user's cache folder. Nothing is read or written yet.
    ///
    /// A folder that was named has to be usable: what cannot be stored there is an error. Where the user's cache folder
    /// cannot be used, programs are compiled and not stored, which a `tracing` event says.
    pub(crate) fn open(folder: Option<&Path>) -> Self {
        let variable = || env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        let named =
            folder.map(Path::to_owned).or_else(|| variable().map(|folder| Path::new(&folder).join("iree")));
        match named {
            Some(folder) => Self { folder: Some(folder), named: true },
            None => {
                let strategy = etcetera::base_strategy::choose_native_strategy();
                let folder = strategy.map(|strategy| strategy.cache_dir().join("mlxcel").join("iree"));
                if let Err(error) = &folder {
                    tracing::warn!(%error, "there is no cache folder: compiled programs are not stored");
                }
                Self { folder: folder.ok(), named: false }
            }
        }
    }

    /// The artifact of `key`, if it is there and whole; a damaged one is removed.
    pub(crate) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.entry(self.folder.as_ref()?, key);
        read_or_remove(&path, Some(key.sum()))
    }

    /// An artifact of `program`, whichever compiler made it; for where there is no compiler to disagree.
    pub(crate) fn read_any(&self, program: &ProgramSum) -> Option<Vec<u8>> {
        let stem = program.stem();
        let mut entries: Vec<PathBuf> = fs::read_dir(self.folder.as_ref()?)
            .ok()?
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                name.to_str().is_some_and(|name| name.starts_with(&stem) && name.ends_with(".vmfb"))
            })
            .map(|entry| entry.path())
            .collect();
        entries.sort();
        entries.iter().find_map(|path| read_or_remove(path, None))
    }

    /// Prepares to make and store the artifact of `key`: waits while somebody else is making it. `None` where artifacts
    /// cannot be stored and need not be.
    ///
    /// # Errors
    /// When the folder was named and cannot be written; [`mlxcel_core::ErrorKind::Cancelled`] while waiting.
    pub(crate) fn reserve(&self, key: &Key, cancel: Option<&CancelToken>) -> Result<Option<Reservation>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let lock_path = folder.join(format!("{}.lock", key.name()));
        let prepared = fs::create_dir_all(folder).and_then(|()| Lock::open(&lock_path));
        let lock = match prepared {
            Ok(lock) => lock,
            Err(source) if self.named => {
                return Err(Error::io("store compiled programs in the cache folder", folder, source));
            }
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled programs are not stored");
                return Ok(None);
            }
        };
        lock.wait(cancel)?;
        Ok(Some(Reservation { folder: folder.clone(), path: self.entry(folder, key), key: *key, lock }))
    }

    /// What the compiler at `path` said it was, if that very file was asked before.
    pub(crate) fn known_revision(&self, path: &Path) -> Option<Revision> {
        let text = fs::read_to_string(self.revision_note(path)?).ok()?;
        Revision::recorded(text.trim_end())
    }

    /// Notes what the compiler at `path` says it is, to spare the next start the question.
    pub(crate) fn note_revision(&self, path: &Path, revision: &Revision) {
        let Some(note) = self.revision_note(path) else { return };
        let written = note.parent().map_or(Ok(()), |folder| {
            fs::create_dir_all(folder)?;
            let mut file = tempfile::Builder::new().prefix(".part-").tempfile_in(folder)?;
            writeln!(file, "{revision}")?;
            file.persist(&note).map_err(|error| error.error)?;
            Ok::<(), io::Error>(())
        });
        // A note is a convenience; whether the folder can be written matters, and is told, where artifacts are stored.
        if let Err(error) = written {
            tracing::debug!(note = %note.display(), %error, "the compiler's revision was not noted");
        }
    }

    /// Where the revision of the compiler at `path` is noted: under the path, the size and the time of the program and
    /// of the library that it loads, so that another compiler in its place is another one.
    fn revision_note(&self, path: &Path) -> Option<PathBuf> {
        let path = fs::canonicalize(path).ok()?;
        let mut parts = Parts::new();
        for file in [
            path.clone(),
            path.with_file_name("libIREECompiler.so"),
            path.with_file_name("libIREECompiler.dylib"),
        ] {
            let Ok(metadata) = fs::metadata(&file) else { continue };
            let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            parts.add_bytes(file.as_os_str().as_encoded_bytes());
            parts.add(&format!("{} {}", metadata.len(), modified.as_nanos()));
        }
        Some(self.folder.as_ref()?.join("compilers").join(hex(&parts.finish()[..16])))
    }

    fn entry(&self, folder: &Path, key: &Key) -> PathBuf {
        folder.join(format!("{}.vmfb", key.name()))
    }
}

/// The right to make an artifact, held against other threads and processes that would make the same.
pub(crate) struct Reservation {
    folder: PathBuf,
    path: PathBuf,
    key: Key,
    lock: Lock,
}

impl Reservation {
    /// The artifact that somebody else made meanwhile.
    pub(crate) fn made_meanwhile(&self) -> Option<Vec<u8>> {
        read_or_remove(&self.path, Some(self.key.sum()))
    }

    /// Stores the artifact. It is in memory and good, so a failure (a full disk) is told and not an error.
    pub(crate) fn store(self, artifact: &[u8]) {
        match entry::write(&self.folder, &self.path, self.key.sum(), artifact) {
            Ok(()) => self.lock.remove(),
            Err(error) => {
                tracing::warn!(entry = %self.path.display(), %error, "a compiled program could not be stored");
            }
        }
    }
}

/// Reads an entry; one that is damaged is removed, so that it is made again.
fn read_or_remove(path: &Path, key: Option<&[u8; 32]>) -> Option<Vec<u8>> {
    match entry::read(path, key) {
        Ok(Entry::Sound(artifact)) => Some(artifact),
        Ok(Entry::Missing) => None,
        Ok(Entry::Corrupt(reason)) => {
            tracing::warn!(entry = %path.display(), reason, "a stored program is damaged and is made again");
            // If it cannot be removed, it is replaced or fails this check again.
            let _ = fs::remove_file(path);
            None
        }
        Err(error) => {
            tracing::warn!(entry = %path.display(), %error, "a stored program could not be read");
            None
        }
    }
}
