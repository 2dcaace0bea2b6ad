//! Temporary folders for output that appears atomically.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mlxcel_core::{Error, ErrorKind, Result};
use tempfile::TempDir;

/// The folders that this process writes; `None` once the process is ending, after which no new one starts.
static UNFINISHED: Mutex<Option<Vec<Entry>>> = Mutex::new(Some(Vec::new()));

/// The folder in which `destination` is to appear, and its name there; errors name `operation`.
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput) for a path without a name, such as `/`.
pub fn place_of<'a>(operation: &'static str, destination: &'a Path) -> Result<(&'a Path, &'a OsStr)> {
    let name = destination.file_name().ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, operation, "this is not a valid folder name")
            .with_context("path", destination.display())
    })?;
    let parent = destination.parent().filter(|parent| *parent != Path::new(""));
    Ok((parent.unwrap_or(Path::new(".")), name))
}

/// A folder that is not complete.
struct Entry {
    path: PathBuf,
    /// Removes parts of it, and returns whether the others are kept.
    keep: Box<dyn Fn() -> bool + Send>,
}

/// A folder that a later run can resume. [`remove_unfinished`] cleans it up while this exists.
#[derive(Debug)]
pub struct Resumable {
    path: PathBuf,
}

impl Resumable {
    /// Lists the folder at `path`. `keep` removes the parts that a later run cannot use, while another thread
    /// may write to the folder, and returns whether others are left; if not, the folder is removed.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Interrupted`] after [`remove_unfinished`].
    pub fn list(path: &Path, keep: impl Fn() -> bool + Send + 'static) -> io::Result<Self> {
        let mut unfinished = unfinished();
        let listed = unfinished.as_mut().ok_or(io::ErrorKind::Interrupted)?;
        listed.push(Entry { path: path.to_owned(), keep: Box::new(keep) });
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Resumable {
    fn drop(&mut self) {
        forget(&self.path);
    }
}

/// A private temporary folder, removed on drop.
///
/// A killed process removes nothing. The folder is therefore locked while its process lives, and
/// [`begin`](Self::begin) in the same place removes unlocked ones. A program that handles signals calls
/// [`remove_unfinished`].
#[derive(Debug)]
pub struct Workplace {
    /// Removed by `drop`, before the lock goes.
    folder: Option<TempDir>,
    path: PathBuf,
    _lock: Option<File>,
}

impl Workplace {
    /// Creates a folder in `parent` with the prefix `prefix`, and removes abandoned folders with that prefix.
    ///
    /// # Errors
    ///
    /// Errors of the operating system; [`io::ErrorKind::Interrupted`] after [`remove_unfinished`].
    pub fn begin(parent: &Path, prefix: &str) -> io::Result<Self> {
        sweep(parent, prefix);
        loop {
            let folder = {
                // The folder appears and is listed atomically with respect to the removal of unfinished ones.
                let mut unfinished = unfinished();
                let listed = unfinished.as_mut().ok_or(io::ErrorKind::Interrupted)?;
                let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
                listed.push(Entry { path: folder.path().to_owned(), keep: Box::new(|| false) });
                folder
            };
            let path = folder.path().to_owned();
            // Another process may have swept the folder away before it is locked.
            if let Some(lock) = hold(&path) {
                return Ok(Self { folder: Some(folder), path, _lock: lock });
            }
            forget(&path);
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        drop(self.folder.take());
        forget(&self.path);
    }
}

/// Removes all folders of this process, but for the parts that a later run can resume; for programs that are
/// about to exit. Writes to removed folders fail, and no new folder can be created.
pub fn remove_unfinished() {
    for entry in unfinished().take().unwrap_or_default() {
        if !(entry.keep)() {
            remove(&entry.path);
        }
    }
}

/// Removes a folder to which its owner may add a file meanwhile.
fn remove(path: &Path) {
    for _ in 0..10 {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => break,
        }
    }
}

fn forget(path: &Path) {
    if let Some(unfinished) = unfinished().as_mut() {
        unfinished.retain(|listed| listed.path != path);
    }
}

fn unfinished() -> std::sync::MutexGuard<'static, Option<Vec<Entry>>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the folder; none where it is gone. Where folders cannot be locked, abandoned ones are not removed.
#[cfg(unix)]
fn hold(path: &Path) -> Option<Option<File>> {
    use rustix::fs::{FlockOperation, flock};

    let folder = File::open(path).ok()?;
    if flock(&folder, FlockOperation::LockExclusive).is_err() {
        return Some(None);
    }
    is_at(&folder, path).then_some(Some(folder))
}

/// Removes the folders in `parent` whose processes have died; whatever stands in the way is the next one's to
/// try.
#[cfg(unix)]
fn sweep(parent: &Path, prefix: &str) {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    use std::os::unix::fs::MetadataExt;

    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let path = entry.path();
        // In folders that all may write to, others may have put something of that name.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(folder) = open(&path, flags, Mode::empty()).map(File::from) else { continue };
        let is_ours =
            folder.metadata().is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
        if is_ours
            && flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_at(&folder, &path)
        {
            // If it cannot be removed it stays.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Whether `folder` is what is at `path`.
#[cfg(unix)]
fn is_at(folder: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, there) = (folder.metadata().map(place), fs::symlink_metadata(path).map(place));
    matches!((open, there), (Ok(open), Ok(there)) if open == there)
}

#[cfg(not(unix))]
fn hold(_path: &Path) -> Option<Option<File>> {
    Some(None)
}

#[cfg(not(unix))]
fn sweep(_parent: &Path, _prefix: &str) {}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const PREFIX: &str = ".mlxcel-test-";

    fn folders(parent: &Path) -> usize {
        let entries = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter(|name| name.to_string_lossy().starts_with(PREFIX)).count()
    }

    /// What the test below starts as a process of its own; by itself it has nothing to do.
    #[test]
    fn in_another_process() {
        let Some(parent) = std::env::var_os("MLXCEL_TEST_WORKPLACE") else { return };
        let work = Workplace::begin(Path::new(&parent), PREFIX).unwrap();
        fs::write(work.path().join("half"), "half").unwrap();
        thread::sleep(Duration::from_secs(600));
    }

    #[test]
    fn leftovers_of_killed_processes_are_removed_and_folders_in_use_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::workplace::tests::in_another_process"])
            .env("MLXCEL_TEST_WORKPLACE", parent.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while folders(parent.path()) == 0 {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(2));
        }
        let work = Workplace::begin(parent.path(), PREFIX).unwrap();
        assert_eq!(folders(parent.path()), 2, "that of a process that lives stays");
        child.kill().unwrap();
        child.wait().unwrap();
        // What others of that name point to is not touched.
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), parent.path().join(format!("{PREFIX}link"))).unwrap();
        let other = Workplace::begin(parent.path(), PREFIX).unwrap();
        assert_eq!(folders(parent.path()), 3);
        assert!(work.path().exists() && elsewhere.path().exists());
        drop((work, other));
        assert_eq!(folders(parent.path()), 1);
    }

    #[test]
    fn an_early_exit_removes_its_folder() {
        // In a process of its own, since those of other tests would go too.
        let Some(parent) = std::env::var_os("MLXCEL_TEST_UNFINISHED") else {
            let parent = tempfile::tempdir().unwrap();
            let ended = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "files::workplace::tests::an_early_exit_removes_its_folder"])
                .env("MLXCEL_TEST_UNFINISHED", parent.path())
                .stdout(Stdio::null())
                .status();
            assert!(ended.unwrap().success());
            return;
        };
        let parent = Path::new(&parent);
        let work = [0, 1].map(|_| Workplace::begin(parent, PREFIX).unwrap());
        fs::write(work[0].path().join("half"), "half").unwrap();
        let resumed = parent.join(format!("{PREFIX}resumed"));
        fs::create_dir(&resumed).unwrap();
        let half = resumed.join("half");
        fs::write(&half, "half").unwrap();
        let _resumable = Resumable::list(&resumed, move || fs::remove_file(&half).is_ok()).unwrap();
        remove_unfinished();
        assert_eq!((folders(parent), fs::read_dir(&resumed).unwrap().count()), (1, 0));
        fs::remove_dir(&resumed).unwrap();
        assert_eq!(Resumable::list(&resumed, || false).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert!(fs::write(work[0].path().join("more"), "more").is_err());
        assert_eq!(Workplace::begin(parent, PREFIX).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(folders(parent), 0);
    }
}
