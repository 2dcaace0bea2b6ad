//! An output folder that appears atomically and can be resumed.
//!
//! It is written in a work folder beside its destination, named after it, which records the input and the
//! options. A run with the same input and options resumes with the completed weight files; a run with others
//! fails while such files exist.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::files::{Resumable, place_of, read_regular};

/// What stands before the name of the place in that of the work folder.
const PREFIX: &str = ".mlxcel-quantize-";

/// The file in the work folder that says what it is made from and how.
const IDENTITY: &str = "made-from";

/// The file in the work folder that is not whole yet.
const PARTIAL: &str = "partial";
/// The most bytes of a record of what is done.
const LONGEST_NOTE: u64 = 64 << 20;

/// A checkpoint being written, beside the place where it is to stand.
pub(super) struct Folder {
    work: PathBuf,
    folder: PathBuf,
    destination: PathBuf,
    parent: PathBuf,
    /// What the folder is written for, as errors name it.
    operation: &'static str,
    /// Cleans up if a signal ends the process.
    _listed: Resumable,
    _lock: Option<File>,
}

impl Folder {
    /// Starts or resumes a folder that will be moved to `destination`, which must not exist. `identity`
    /// describes the content; `restart` removes what was written before.
    pub(super) fn begin(
        operation: &'static str,
        destination: &Path,
        identity: &str,
        restart: bool,
    ) -> Result<Self> {
        let (parent, name) = place_of(operation, destination)?;
        let mut work_name = std::ffi::OsString::from(PREFIX);
        work_name.push(name);
        let work = parent.join(work_name);
        let folder = work.join(name);
        if let Err(error) = expect_nothing(operation, destination) {
            remove_abandoned(operation, &work, &folder);
            return Err(error);
        }
        let mut private = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
        match private.create(&work) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => expect_own(operation, &work)?,
            Err(error) => return Err(Error::io(operation, parent, error)),
            Ok(()) => {}
        }
        let lock = hold(operation, &work)?;
        let listed = [work.clone(), folder.clone()];
        let listed = Resumable::list(&work, move || keep_complete(&listed[0], &listed[1]));
        let this = Self {
            destination: destination.to_owned(),
            parent: parent.to_owned(),
            operation,
            _listed: listed.map_err(|error| Error::io(operation, &work, error))?,
            _lock: lock,
            work,
            folder,
        };
        this.resume(identity, restart)?;
        Ok(this)
    }

    /// Keeps what is whole of the same work, and removes everything else.
    fn resume(&self, identity: &str, restart: bool) -> Result<()> {
        let path = self.work.join(IDENTITY);
        let is_same = read_regular(&path, LONGEST_NOTE).is_ok_and(|found| found == identity.as_bytes());
        let fail = |error| Error::io(self.operation, &self.work, error);
        if !is_same && !restart && has_shards(&self.folder).map_err(fail)? {
            let message = "interrupted work on another checkpoint, or with other options, is in this folder; finish it, or discard it with `restart`";
            return Err(Error::new(ErrorKind::InvalidInput, self.operation, message)
                .with_context("path", self.work.display()));
        }
        if !is_same || restart {
            for entry in fs::read_dir(&self.work).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let is_folder = entry.file_type().map_err(fail)?.is_dir();
                let removed =
                    if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
                removed.map_err(fail)?;
            }
            fs::write(&path, identity).map_err(fail)?;
        }
        match fs::create_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(fail(error)),
            _ => Ok(()),
        }
    }

    /// The record of the complete file `name`; `None` if it is not there.
    pub(super) fn finished(&self, name: &str) -> Option<Vec<u8>> {
        self.folder.join(name).is_file().then(|| read_regular(&self.note(name), LONGEST_NOTE).ok()).flatten()
    }

    fn note(&self, name: &str) -> PathBuf {
        self.work.join(format!("{name}.json"))
    }

    /// Where the file `name` is when the folder is complete: the path in errors.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.destination.join(name)
    }

    /// A new file, which [`finish`](Self::finish) puts into the folder.
    pub(super) fn create(&self) -> Result<File> {
        let path = self.work.join(PARTIAL);
        let file = File::create(&path);
        file.map_err(|error| Error::io(self.operation, &path, error))
    }

    /// Puts the file that was created last into the folder as `name`, and stores `note` for a run that
    /// resumes.
    pub(super) fn finish(&self, file: &File, name: &str, note: &[u8]) -> Result<()> {
        let fail = |error| Error::io(self.operation, &self.place(name), error);
        // A folder that is announced by its rename must not turn out empty after a power cut.
        file.sync_all().map_err(fail)?;
        fs::write(self.note(name), note).map_err(fail)?;
        fs::rename(self.work.join(PARTIAL), self.folder.join(name)).map_err(fail)
    }

    /// Writes a file whole, in a folder of its own if its name says so.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        let folder = path.parent().unwrap_or(&self.folder);
        let written = fs::create_dir_all(folder).and_then(|()| File::create(&path)).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
        written.map_err(|error| Error::io(self.operation, &path, error))
    }

    /// Puts the folder into its place.
    pub(super) fn publish(self) -> Result<()> {
        let fail = |error| Error::io(self.operation, &self.destination, error);
        expect_nothing(self.operation, &self.destination)?;
        fs::rename(&self.folder, &self.destination).map_err(fail)?;
        #[cfg(unix)]
        File::open(&self.parent).and_then(|folder| folder.sync_all()).map_err(fail)?;
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is empty goes even if there is no descriptor left to read it, and the rest opens one folder at a
        // time. If it cannot be removed, the next run removes it.
        if fs::remove_dir(&self.work).is_err() && !keep_complete(&self.work, &self.folder) {
            let _ = fs::remove_dir_all(&self.folder);
            let _ = fs::remove_dir_all(&self.work);
        }
    }
}

/// Removes the partial file of a work folder; false if no weight file is complete, or all are published, and
/// nothing needs to be kept.
fn keep_complete(work: &Path, folder: &Path) -> bool {
    // What cannot be read may have taken hours.
    let keeps = has_shards(folder).unwrap_or(true);
    if keeps {
        let _ = fs::remove_file(work.join(PARTIAL));
    }
    keeps
}

fn has_shards(folder: &Path) -> io::Result<bool> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        entries => Ok(entries?
            .flatten()
            .any(|entry| entry.path().extension().is_some_and(|extension| extension == "safetensors"))),
    }
}

/// Removes the work folder of a process that was killed when it had published its files, or had none.
fn remove_abandoned(operation: &'static str, work: &Path, folder: &Path) {
    let Ok(_lock) = expect_own(operation, work).and_then(|()| hold(operation, work)) else { return };
    if has_shards(folder).is_ok_and(|has| !has) {
        let _ = fs::remove_dir_all(work);
    }
}

/// Refuses a place where something stands.
fn expect_nothing(operation: &'static str, destination: &Path) -> Result<()> {
    match fs::symlink_metadata(destination) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(operation, destination, error)),
        Ok(_) => {
            let message = "the path already exists";
            Err(Error::new(ErrorKind::InvalidInput, operation, message)
                .with_context("path", destination.display()))
        }
    }
}

/// Refuses a work folder that is none, or another user's.
fn expect_own(operation: &'static str, work: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(work).map_err(|error| Error::io(operation, work, error))?;
    #[cfg(unix)]
    let is_ours = std::os::unix::fs::MetadataExt::uid(&metadata) == rustix::process::geteuid().as_raw();
    #[cfg(not(unix))]
    let is_ours = true;
    if metadata.is_dir() && is_ours {
        return Ok(());
    }
    let message = "the working folder's path is not a folder of this user; remove it";
    Err(Error::new(ErrorKind::InvalidInput, operation, message).with_context("path", work.display()))
}

/// Locks the work folder. Where folders cannot be locked, two processes must not write to one place at a
/// time.
#[cfg(unix)]
fn hold(operation: &'static str, work: &Path) -> Result<Option<File>> {
    use rustix::fs::{FlockOperation, flock};

    let folder = File::open(work).map_err(|error| {
        // If it is new, it is empty.
        let _ = fs::remove_dir(work);
        Error::io(operation, work, error)
    })?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = "another process is writing to this folder";
            Err(Error::new(ErrorKind::InvalidInput, operation, message).with_context("path", work.display()))
        }
        Err(_) => Ok(None),
        Ok(()) => Ok(Some(folder)),
    }
}

#[cfg(not(unix))]
fn hold(_operation: &'static str, _work: &Path) -> Result<Option<File>> {
    Ok(None)
}
