//! A content-addressed cache on disk, of compiled programs, and of weights in the order that programs read
//! them.
//!
//! # Cache keys
//!
//! The key is the SHA-256 of the program's text, the compiler's flags, the resolved target, the compiler's
//! revision, the content of the compiler's files, and the versions of this crate and of the file format. So a
//! program is found if all of that is equal, on any machine and in any folder, and never confused with
//! another one.
//!
//! # Guarantees
//!
//! Entries are published atomically by renaming, and their checksum is verified on every read; a damaged
//! entry is removed with a `tracing` warning and compiled again. Threads and processes can share a folder,
//! even if some are killed; if several need the same program, one compiles it. A folder can be moved or
//! copied: it contains no paths.
//!
//! # Weights
//!
//! The weights of a model are one entry, which is mapped where it is used. Its key is the SHA-256 of the
//! checkpoint's [stamp](mlxcel_models::Checkpoint::stamp), of names and layouts of the weights, and of the
//! version of this crate. Its checksums are verified once after each start of the system.
//!
//! # Size limit
//!
//! The limit is [`Toolchain::cache_size`](crate::Toolchain::cache_size), else `MLXCEL_CACHE_SIZE` (`500M`,
//! `8GiB`), else [`DEFAULT_LIMIT`]. It holds for programs and for weights, each. Adding an entry beyond it
//! evicts the least recently used ones of its kind; entries used within the last minute stay.

mod entry;
mod evict;
mod key;
mod list;
mod lock;
mod note;
mod schedules;
mod size;
mod weights;

#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod tests;

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use mlxcel_core::{CancelToken, Error, Result};

pub(crate) use entry::Label;
use entry::{Wanted, read_or_remove};
pub(crate) use key::{Key, ProgramSum};
pub use list::{CacheEntry, Pruned};
use lock::Lock;
pub use size::parse_size;
pub use weights::{BLOCK, NewWeights, WeightsKey, checksum};

/// The variable that names the folder of mlxcel's caches.
const FOLDER_VARIABLE: &str = "MLXCEL_CACHE_DIR";
/// The variable that says how much the cache may hold.
const SIZE_VARIABLE: &str = "MLXCEL_CACHE_SIZE";

/// The end of the names of programs.
const PROGRAM: &str = ".vmfb";
/// The end of the names of weights.
const WEIGHTS: &str = ".weights";
/// The kinds of entries.
const KINDS: [&str; 2] = [PROGRAM, WEIGHTS];

/// The default size limit: 8 GiB, some thousand programs, or the weights of some models.
pub const DEFAULT_LIMIT: u64 = 8 << 30;

/// A folder of compiled programs and weights.
#[derive(Clone, Debug)]
pub struct Cache {
    /// None where this system has no place for one.
    folder: Option<PathBuf>,
    /// Whether the caller named the folder, which then has to be usable.
    named: bool,
    limit: u64,
}

impl Cache {
    /// Opens the cache in `folder`, else in `iree` under `MLXCEL_CACHE_DIR`, else in `mlxcel/iree` under the
    /// user's cache folder. This reads and writes nothing yet.
    ///
    /// If a named folder is not writable, storing a program is an error. If the user's cache folder is not
    /// usable, programs are compiled without being stored, with a `tracing` event.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) for an invalid `MLXCEL_CACHE_SIZE`.
    pub fn open(folder: Option<&Path>) -> Result<Self> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let limit = match variable(SIZE_VARIABLE) {
            Some(size) => parse_size(&size.to_string_lossy())
                .map_err(|error| error.with_context("variable", SIZE_VARIABLE))?,
            None => DEFAULT_LIMIT,
        };
        let named = folder
            .map(Path::to_owned)
            .or_else(|| variable(FOLDER_VARIABLE).map(|folder| Path::new(&folder).join("iree")));
        let (folder, named) = match named {
            Some(folder) => (Some(folder), true),
            None => (users_folder(), false),
        };
        Ok(Self { folder, named, limit })
    }

    /// Sets the size limit in bytes; overrides the environment.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// The folder of the entries; `None` if this system has no cache folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The size limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The artifact of `key`, if it is there and whole; a damaged one is removed.
    pub(crate) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let path = entry_path(self.folder.as_ref()?, key);
        read_or_remove(&path, |path| entry::read(path, Wanted::Key(key))).ok()?
    }

    /// An artifact of `program`, whichever compiler made it; for where there is no compiler to disagree.
    ///
    /// # Errors
    /// The error of reading the folder, if no artifact was found.
    pub(crate) fn read_any(&self, program: &ProgramSum) -> Result<Option<Vec<u8>>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let stem = program.stem();
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("look for a compiled program", folder, error)),
        };
        let of_program = |name: &str| name.starts_with(&stem) && name.ends_with(PROGRAM);
        let mut entries: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(of_program))
            .map(|entry| entry.path())
            .collect();
        entries.sort();
        let mut failure = None;
        for path in entries {
            match read_or_remove(&path, |path| entry::read(path, Wanted::Program(program))) {
                Ok(Some(artifact)) => return Ok(Some(artifact)),
                Ok(None) => {}
                Err(error) => failure = Some(Error::io("read a compiled program", &path, error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Prepares to make and store the artifact of `key`: waits while another process is making it. `None`
    /// where artifacts cannot be stored and need not be.
    ///
    /// # Errors
    /// When the folder was named and cannot be written; [`mlxcel_core::ErrorKind::Cancelled`] while waiting.
    pub(crate) fn reserve(&self, key: &Key, cancel: Option<&CancelToken>) -> Result<Option<Reservation>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let lock_path = folder.join(format!("{}.lock", key.name()));
        let prepared = fs::create_dir_all(folder).and_then(|()| Lock::open(&lock_path));
        let lock = match prepared {
            Ok(lock) => lock,
            Err(source) if self.named && !lock_path.is_dir() => {
                return Err(Error::io("store compiled programs in the cache folder", folder, source));
            }
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled programs are not stored");
                return Ok(None);
            }
        };
        lock.wait(cancel)?;
        Ok(Some(Reservation { cache: self.clone(), path: entry_path(folder, key), key: *key, lock }))
    }
}

/// The cache folder of this system's conventions.
fn users_folder() -> Option<PathBuf> {
    match etcetera::base_strategy::choose_native_strategy() {
        Ok(strategy) => Some(strategy.cache_dir().join("mlxcel").join("iree")),
        Err(error) => {
            tracing::warn!(%error, "no cache folder is available: compiled programs are not stored");
            None
        }
    }
}

fn entry_path(folder: &Path, key: &Key) -> PathBuf {
    folder.join(format!("{}{PROGRAM}", key.name()))
}

/// The right to make an artifact, held against other threads and processes that would make the same.
pub(crate) struct Reservation {
    cache: Cache,
    path: PathBuf,
    key: Key,
    lock: Lock,
}

impl Reservation {
    /// The artifact that another process has made meanwhile.
    pub(crate) fn made_meanwhile(&self) -> Option<Vec<u8>> {
        self.cache.read(&self.key)
    }

    /// Stores the artifact, and makes room for it.
    ///
    /// # Errors
    /// If a configured folder is full or not writable. For the default folder this is only logged: the
    /// artifact in memory is valid.
    pub(crate) fn store(self, label: &Label, artifact: &[u8]) -> Result<()> {
        let Self { cache, path, key, lock } = self;
        match entry::write(&path, &key, label, artifact) {
            Ok(()) => {
                lock.remove();
                evict::make_room(PROGRAM, cache.limit, &path);
                Ok(())
            }
            // What is not a file of this cache may be somebody's. It stays, and the program is compiled each
            // time.
            Err(error) if cache.named && !path.is_dir() => {
                Err(Error::io("store a compiled program in the cache", &path, error))
            }
            Err(error) => {
                tracing::warn!(entry = %path.display(), %error, "a compiled program could not be stored");
                Ok(())
            }
        }
    }
}
