//! Evicts the least recently used entries to keep the cache within its limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

use super::list::Pruned;
use super::lock::Lock;

/// What the names of files begin with that are being written.
const PART: &str = ".part-";

/// Entries used this recently count as in use: opening a model reads several entries in succession.
const IN_USE: Duration = Duration::from_secs(60);

/// The age at which a part or a lock counts as abandoned: its process was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A file of the cache.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) last_used: SystemTime,
}

/// A new file in `folder`, to be renamed once it is written. All may read it, as far as the umask lets them, so
/// that a cache that one user filled, as the build of an image does, serves others.
pub(super) fn new_part(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Only their owner writes them: they are code.
        builder.permissions(fs::Permissions::from_mode(0o644));
    }
    builder.prefix(PART).tempfile_in(folder)
}

/// The files in `folder` whose names `is_wanted`; those that vanish meanwhile are left out. No folder, no
/// files.
pub(super) fn files(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Stored>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(&is_wanted) {
            continue;
        }
        if let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            let last_used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push(Stored { path: entry.path(), bytes: metadata.len(), last_used });
        }
    }
    Ok(files)
}

/// The entries in `folder` of these `kinds`, by the ends of their names, those first that were not used for
/// the longest time.
pub(super) fn entries(folder: &Path, kinds: &[&str]) -> io::Result<Vec<Stored>> {
    let is_entry = |name: &str| kinds.iter().any(|kind| name.ends_with(kind)) && !name.starts_with('.');
    let mut entries = files(folder, is_entry)?;
    entries.sort_by(|a, b| (a.last_used, &a.path).cmp(&(b.last_used, &b.path)));
    Ok(entries)
}

/// Removes entries of a `kind` beyond `limit` bytes from the folder of `new`, but neither that nor what is in
/// use, and what killed processes left behind. Failures are logged and not errors: the next writer tries
/// again.
pub(super) fn make_room(kind: &str, limit: u64, new: &Path) {
    let (folder, now) = (new.parent().unwrap_or(new), SystemTime::now());
    let in_use = |entry: &Stored| entry.path == new || is_within(IN_USE, entry.last_used, now);
    match shrink(folder, &[kind], limit, in_use) {
        Ok(Pruned { entries: 0, .. }) => {}
        Ok(pruned) => {
            tracing::debug!(?pruned, limit, "removed the least recently used entries");
        }
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the cache could not be reduced to its size limit")
        }
    }
    sweep(folder, |file| !is_within(ABANDONED, file.last_used, now));
}

/// Whether `time` is less than `span` before `now`; a time to come counts as now.
fn is_within(span: Duration, time: SystemTime, now: SystemTime) -> bool {
    now.duration_since(time).map_or(true, |age| age < span)
}

/// Removes entries of these kinds, oldest first and sparing some, until at most `limit` bytes are left.
/// Several processes may do it at once: what another removed counts as removed.
pub(super) fn shrink(
    folder: &Path,
    kinds: &[&str],
    limit: u64,
    spare: impl Fn(&Stored) -> bool,
) -> io::Result<Pruned> {
    let entries = entries(folder, kinds)?;
    let mut left: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let mut pruned = Pruned::default();
    for entry in entries {
        if left <= limit {
            break;
        }
        if spare(&entry) {
            continue;
        }
        match fs::remove_file(&entry.path) {
            Ok(()) => {
                pruned.entries += 1;
                pruned.bytes += entry.bytes;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // It is being read, on systems where that prevents deletion.
            Err(error) => {
                tracing::debug!(entry = %entry.path.display(), %error, "an entry could not be removed");
                continue;
            }
        }
        left -= entry.bytes;
    }
    Ok(pruned)
}

/// Removes parts and locks that `is_abandoned`; a held lock stays.
pub(super) fn sweep(folder: &Path, is_abandoned: impl Fn(&Stored) -> bool) {
    let litter = files(folder, |name| name.starts_with(PART) || name.ends_with(".lock")).unwrap_or_default();
    for file in litter.into_iter().filter(is_abandoned) {
        let is_lock = file.path.extension().is_some_and(|extension| extension == "lock");
        let is_held = is_lock && !Lock::open(&file.path).is_ok_and(|lock| lock.is_free());
        if !is_held {
            // It is litter; if it cannot be removed it stays.
            let _ = fs::remove_file(&file.path);
        }
    }
}
