//! A folder that appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::OPERATION;
use crate::files::Workplace;
use mlxcel_core::{Error, ErrorKind, Result};

/// A checkpoint being written, beside the place where it is to stand.
pub(super) struct Folder {
    /// Removed, with all that is in it, when this is dropped.
    outer: Workplace,
    folder: PathBuf,
    destination: PathBuf,
}

impl Folder {
    /// Begins a folder that will stand at `destination`, where nothing stands yet.
    pub(super) fn begin(destination: &Path) -> Result<Self> {
        let name = destination.file_name().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, OPERATION, "this is no name for a folder")
                .with_context("path", destination.display())
        })?;
        let parent = match destination.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        expect_nothing(destination)?;
        let fail = |error| Error::io(OPERATION, parent, error);
        let outer = Workplace::begin(parent, ".mlxcel-quantize-").map_err(fail)?;
        // The temporary folder is private; what moves out of it has the permissions that folders have here.
        let folder = outer.path().join(name);
        fs::create_dir(&folder).map_err(|error| Error::io(OPERATION, &folder, error))?;
        Ok(Self { outer, folder, destination: destination.to_owned() })
    }

    /// Where the file `name` is written.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A new file.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let file = File::options().write(true).create_new(true).open(&path);
        file.map_err(|error| Error::io(OPERATION, &path, error))
    }

    /// Writes a file whole.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(|error| Error::io(OPERATION, &self.path(name), error))
    }

    /// Puts the folder into its place.
    pub(super) fn publish(self) -> Result<()> {
        let fail = |error| Error::io(OPERATION, &self.destination, error);
        expect_nothing(&self.destination)?;
        fs::rename(&self.folder, &self.destination).map_err(fail)?;
        #[cfg(unix)]
        if let Some(parent) = self.outer.path().parent() {
            File::open(parent).and_then(|folder| folder.sync_all()).map_err(fail)?;
        }
        Ok(())
    }
}

/// Refuses a place where something stands.
fn expect_nothing(destination: &Path) -> Result<()> {
    match fs::symlink_metadata(destination) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(OPERATION, destination, error)),
        Ok(_) => {
            let message = "something stands in this place already";
            Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                .with_context("path", destination.display()))
        }
    }
}
