//! Writes a folder atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mlxcel_core::{Control, Error, ErrorKind, Result};
use mlxcel_iree_target::hex;
use mlxcel_iree_target::manifest::{FileEntry, MANIFEST};
use mlxcel_models::files::{Workplace, place_of};
use sha2::{Digest, Sha256};

pub(super) const OPERATION: &str = "write bundle";

/// How the names of temporary folders begin.
const PREFIX: &str = ".mlxcel-bundle-";

/// How the names of folders that are being replaced begin.
const REPLACED: &str = ".mlxcel-replaced-";

/// How much is written between two looks at whether the operation was cancelled.
const BLOCK: usize = 4 << 20;

/// A bundle being written, beside the place where it is to stand.
pub(super) struct Staging {
    /// Removed, with all that is in it, when this is dropped.
    outer: Workplace,
    folder: PathBuf,
    destination: PathBuf,
    replace: bool,
}

impl Staging {
    /// Begins a folder that will stand at `destination`.
    pub(super) fn begin(destination: &Path, replace: bool) -> Result<Self> {
        let (parent, name) = place_of(OPERATION, destination)?;
        check_destination(destination, replace)?;
        let fail = |error| Error::io(OPERATION, parent, error);
        let outer = Workplace::begin(parent, PREFIX).map_err(fail)?;
        // The temporary folder is private; what moves out of it has the permissions that folders have here.
        let folder = outer.path().join(name);
        fs::create_dir(&folder).map_err(|error| Error::io(OPERATION, &folder, error))?;
        Ok(Self { outer, folder, destination: destination.to_owned(), replace })
    }

    /// Writes a file at `path`, below the folder; calls `wrote` with each block's size.
    pub(super) fn add(
        &self,
        path: &str,
        content: &[u8],
        control: &Control<'_>,
        wrote: &dyn Fn(u64),
    ) -> Result<FileEntry> {
        let mut file = self.begin_file(path)?;
        file.write(content, control, wrote)?;
        Ok(file.finish()?.0)
    }

    /// Begins a file at `path`, below the folder.
    pub(super) fn begin_file(&self, path: &str) -> Result<StagedFile> {
        let at = path.split('/').fold(self.folder.clone(), |folder, name| folder.join(name));
        let fail = |error| Error::io(OPERATION, &at, error);
        if let Some(folder) = at.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        let file = File::options().write(true).create_new(true).open(&at).map_err(fail)?;
        Ok(StagedFile { path: path.to_owned(), at, file, hash: Sha256::new(), bytes: 0 })
    }

    /// Puts the folder into its place.
    pub(super) fn publish(self) -> Result<()> {
        let fail = |error| Error::io(OPERATION, &self.destination, error);
        check_destination(&self.destination, self.replace)?;
        if !self.replace {
            fs::rename(&self.folder, &self.destination).map_err(fail)?;
        } else if !self.exchange().map_err(fail)? {
            self.move_away().map_err(fail)?;
            self.move_in()?;
        }
        #[cfg(unix)]
        if let Some(parent) = self.outer.path().parent() {
            File::open(parent).and_then(|folder| folder.sync_all()).map_err(fail)?;
        }
        Ok(())
    }
}

/// A file of a bundle that is being written.
pub(super) struct StagedFile {
    path: String,
    at: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl StagedFile {
    /// Writes `content` at the end; calls `wrote` with each block's size.
    pub(super) fn write(&mut self, content: &[u8], control: &Control<'_>, wrote: &dyn Fn(u64)) -> Result<()> {
        for block in content.chunks(BLOCK) {
            control.check(OPERATION)?;
            self.append(block)?;
            wrote(block.len() as u64);
        }
        Ok(())
    }

    /// Writes zeros up to the place `start`.
    pub(super) fn pad_to(&mut self, start: u64) -> Result<()> {
        let zeros = usize::try_from(start.saturating_sub(self.bytes)).unwrap_or_default();
        self.append(&vec![0; zeros])
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::io(OPERATION, &self.at, error))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// What a manifest says of it, and where it is now.
    pub(super) fn finish(self) -> Result<(FileEntry, PathBuf)> {
        // A bundle that is announced by its rename must not turn out empty after a power cut.
        self.file.sync_all().map_err(|error| Error::io(OPERATION, &self.at, error))?;
        Ok((FileEntry::new(self.path, self.bytes, hex(&self.hash.finalize())), self.at))
    }
}

impl Staging {
    /// Exchanges the folder with an existing one, which is removed with the temporary folder: readers always
    /// find one of the two. Returns false where there is none, or the system cannot do that.
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    fn exchange(&self) -> io::Result<bool> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;

        match renameat_with(CWD, &self.folder, CWD, &self.destination, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(true),
            // Some file systems, of networks above all, cannot.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    fn exchange(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Moves what is in the folder's place to [`replaced`](Self::replaced).
    fn move_away(&self) -> io::Result<()> {
        match fs::rename(&self.destination, self.replaced()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves the folder into its place, and removes what was moved away; if that fails, moves it back, or
    /// names its path in the error.
    fn move_in(&self) -> Result<()> {
        let replaced = self.replaced();
        let Err(error) = fs::rename(&self.folder, &self.destination) else {
            // If it cannot be removed it stays.
            let _ = fs::remove_dir_all(&replaced);
            return Ok(());
        };
        let error = Error::io(OPERATION, &self.destination, error);
        match fs::rename(&replaced, &self.destination) {
            Err(back) if back.kind() != io::ErrorKind::NotFound => {
                Err(error.with_context("replaced", replaced.display()))
            }
            _ => Err(error),
        }
    }

    /// Where the replaced folder is between the two renames: not in the temporary folder, which is removed
    /// when the process ends, and under no name by which the next writer removes it.
    fn replaced(&self) -> PathBuf {
        let name = self.outer.path().file_name().unwrap_or_default().to_string_lossy();
        let own = name.trim_start_matches(PREFIX);
        self.outer.path().with_file_name(format!("{REPLACED}{own}"))
    }
}

/// Refuses a place where something stands that is not to be replaced: anything, or with leave to replace
/// anything but a bundle or an empty folder.
fn check_destination(destination: &Path, replace: bool) -> Result<()> {
    let refused = |message: &'static str| {
        Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
            .with_context("path", destination.display()))
    };
    match fs::symlink_metadata(destination) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(OPERATION, destination, error)),
        Ok(_) if !replace => return refused("the path already exists"),
        Ok(metadata) if !metadata.is_dir() => return refused("the existing folder is not a bundle"),
        Ok(_) => {}
    }
    let is_empty =
        fs::read_dir(destination).map_err(|error| Error::io(OPERATION, destination, error))?.next().is_none();
    if is_empty || destination.join(MANIFEST).is_file() {
        return Ok(());
    }
    refused("the existing folder is not a bundle")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(staging: &Staging, path: &str, content: &[u8]) -> FileEntry {
        staging.add(path, content, &Control::default(), &|_| {}).unwrap()
    }

    #[test]
    fn a_folder_appears_complete_or_not_at_all() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("bundle");
        let staging = Staging::begin(&place, false).unwrap();
        let entry = add(&staging, "a/b", b"abc");
        assert_eq!(entry.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(!place.exists());
        drop(staging);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);

        let staging = Staging::begin(&place, false).unwrap();
        add(&staging, "a/b", b"abc");
        staging.publish().unwrap();
        assert_eq!(fs::read(place.join("a/b")).unwrap(), b"abc");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_bundles_are_replaced_and_only_if_allowed() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("bundle");
        let write = |replace, content: &[u8]| {
            Staging::begin(&place, replace).and_then(|staging| {
                add(&staging, MANIFEST, content);
                staging.publish()
            })
        };
        let kind = |result: Result<()>| result.map_err(|error| error.kind());
        write(false, b"1").unwrap();
        assert_eq!(kind(write(false, b"2")), Err(ErrorKind::InvalidInput));
        write(true, b"2").unwrap();
        assert_eq!(fs::read(place.join(MANIFEST)).unwrap(), b"2");

        fs::rename(place.join(MANIFEST), place.join("thesis.txt")).unwrap();
        assert_eq!(kind(write(true, b"3")), Err(ErrorKind::InvalidInput));
        fs::remove_file(place.join("thesis.txt")).unwrap();
        write(true, b"3").unwrap();

        fs::remove_dir_all(&place).unwrap();
        fs::write(&place, "a file").unwrap();
        assert_eq!(kind(write(true, b"4")), Err(ErrorKind::InvalidInput));
        assert_eq!(fs::read_to_string(&place).unwrap(), "a file");
    }

    #[test]
    fn a_bundle_stays_if_no_other_can_take_its_place() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("bundle");
        let begin = |content: &[u8]| {
            let staging = Staging::begin(&place, true).unwrap();
            add(&staging, MANIFEST, content);
            staging
        };
        begin(b"1").publish().unwrap();
        // As where folders cannot be exchanged.
        let staging = begin(b"2");
        staging.move_away().unwrap();
        staging.move_in().unwrap();
        drop(staging);
        assert_eq!(fs::read(place.join(MANIFEST)).unwrap(), b"2");

        let staging = begin(b"3");
        staging.move_away().unwrap();
        fs::remove_dir_all(&staging.folder).unwrap();
        assert_eq!(staging.move_in().unwrap_err().kind(), ErrorKind::NotFound);
        drop(staging);
        assert_eq!(fs::read(place.join(MANIFEST)).unwrap(), b"2");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);

        // Another process has put something there meanwhile.
        let staging = begin(b"4");
        staging.move_away().unwrap();
        fs::create_dir_all(place.join("other")).unwrap();
        let error = staging.move_in().unwrap_err();
        drop(staging);
        let replaced = Path::new(error.context("replaced").unwrap());
        Staging::begin(&parent.path().join("more"), false).unwrap();
        assert_eq!(fs::read(replaced.join(MANIFEST)).unwrap(), b"2");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_replaced_bundle_is_never_missing() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("bundle");
        let write = |number: u32| {
            let staging = Staging::begin(&place, number > 0).unwrap();
            add(&staging, MANIFEST, number.to_string().as_bytes());
            staging.publish().unwrap();
        };
        write(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let missed = scope.spawn(|| {
                let mut missed = 0;
                while !over.load(Ordering::Relaxed) {
                    missed += usize::from(!place.exists());
                }
                missed
            });
            (1..200).for_each(write);
            over.store(true, Ordering::Relaxed);
            assert_eq!(missed.join().unwrap(), 0);
        });
        assert_eq!(fs::read_to_string(place.join(MANIFEST)).unwrap(), "199");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_created_meanwhile_is_not_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("bundle");
        let staging = Staging::begin(&place, false).unwrap();
        add(&staging, MANIFEST, b"1");
        fs::create_dir(&place).unwrap();
        assert_eq!(staging.publish().unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }

    #[test]
    fn cancelling_leaves_no_files() {
        let parent = tempfile::tempdir().unwrap();
        let staging = Staging::begin(&parent.path().join("bundle"), false).unwrap();
        let cancel = mlxcel_core::CancelToken::new();
        cancel.cancel();
        let error = staging.add("a", b"abc", &Control::cancelled_by(&cancel), &|_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        drop(staging);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn impossible_destinations_are_rejected() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("none/bundle");
        assert_eq!(Staging::begin(&missing, false).map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(
            Staging::begin(Path::new("/"), false).map(drop).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}
