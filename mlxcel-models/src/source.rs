//! Where a checkpoint's files are: in a folder, or embedded in the application's binary.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};

use crate::bytes::FileBytes;
use crate::files;

const OPERATION: &str = "open checkpoint";

/// A set of named files.
#[derive(Debug)]
pub(crate) enum Source {
    /// A folder on disk.
    Folder(PathBuf),
    /// Names and contents in the binary.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl Source {
    /// The folder at `path`, which must exist.
    pub(crate) fn folder(path: &Path) -> Result<Self> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Self::Folder(path.to_path_buf())),
            Ok(_) => Err(Error::new(
                ErrorKind::InvalidInput,
                OPERATION,
                "this is a file; give the folder that holds config.json and the safetensors weights",
            )
            .with_context("path", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
                ErrorKind::NotFound,
                OPERATION,
                "there is no such folder; give the folder of a downloaded Hugging Face checkpoint",
            )
            .with_context("path", path.display())
            .with_source(error)),
            Err(error) => Err(Error::io(OPERATION, path, error)),
        }
    }

    /// The name of a file as errors print it.
    pub(crate) fn locate(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => folder.join(name).display().to_string(),
            Self::Embedded(_) => format!("{name} (embedded)"),
        }
    }

    /// Reads a file whole, or `None` if there is none of that name.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        match self {
            Self::Folder(folder) => Ok(files::read_in(folder, name)?.map(Cow::Owned)),
            Self::Embedded(contents) => {
                files::check_name(name, self.root())?;
                Ok(files::embedded(contents, name).map(Cow::Borrowed))
            }
        }
    }

    /// Maps a file of weights, or `None` if there is none of that name. It may be a link to anywhere: weights are large, and people
    /// keep them where there is room.
    pub(crate) fn map(&self, name: &str) -> Result<Option<FileBytes>> {
        files::check_name(name, self.root())?;
        let path = match self {
            Self::Embedded(contents) => return Ok(files::embedded(contents, name).map(FileBytes::Embedded)),
            Self::Folder(folder) => folder.join(name),
        };
        match files::open(&path, &path)? {
            None => Ok(None),
            // An empty file cannot be mapped everywhere; its content is known.
            Some((_, 0)) => Ok(Some(FileBytes::Embedded(&[]))),
            Some((file, _)) => {
                FileBytes::map(&file).map(Some).map_err(|error| Error::io(OPERATION, &path, error))
            }
        }
    }

    /// The names of all files, sorted; folders, and names that are not Unicode, are left out.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names = match self {
            Self::Embedded(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>(),
            Self::Folder(folder) => {
                let fail = |error| Error::io(OPERATION, folder, error);
                let entries =
                    fs::read_dir(folder).map_err(fail)?.collect::<io::Result<Vec<_>>>().map_err(fail)?;
                let files = entries.into_iter().filter(|entry| !entry.path().is_dir());
                files.filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
        };
        names.sort();
        Ok(names)
    }

    fn root(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Embedded(_) => "embedded files".to_owned(),
        }
    }
}
