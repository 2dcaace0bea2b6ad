//! Where a checkpoint's files are: in a folder, or embedded in the application's binary.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};

use crate::bytes::FileBytes;

/// Files other than weights are read whole; nothing that a checkpoint brings comes near this many bytes.
const LARGEST_SIDE_FILE: u64 = 256 << 20;

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
        self.check_name(name)?;
        let folder = match self {
            Self::Embedded(files) => return Ok(embedded(files, name).map(Cow::Borrowed)),
            Self::Folder(folder) => folder,
        };
        let path = folder.join(name);
        let Some(length) = regular_file(&path)? else { return Ok(None) };
        let too_large = || {
            Error::new(
                ErrorKind::Corrupt,
                OPERATION,
                format!(
                    "the file has more than {LARGEST_SIDE_FILE} bytes, which is no plausible size for it"
                ),
            )
            .with_context("path", path.display())
        };
        if length > LARGEST_SIDE_FILE {
            return Err(too_large());
        }
        let mut content = Vec::new();
        let read =
            fs::File::open(&path).and_then(|file| file.take(LARGEST_SIDE_FILE + 1).read_to_end(&mut content));
        match read {
            Ok(_) if content.len() as u64 > LARGEST_SIDE_FILE => Err(too_large()),
            Ok(_) => Ok(Some(Cow::Owned(content))),
            Err(error) => Err(Error::io(OPERATION, &path, error)),
        }
    }

    /// Maps a file of weights, or `None` if there is none of that name.
    pub(crate) fn map(&self, name: &str) -> Result<Option<FileBytes>> {
        self.check_name(name)?;
        let path = match self {
            Self::Embedded(files) => return Ok(embedded(files, name).map(FileBytes::Embedded)),
            Self::Folder(folder) => folder.join(name),
        };
        match regular_file(&path)? {
            None => Ok(None),
            // An empty file cannot be mapped everywhere; its content is known.
            Some(0) => Ok(Some(FileBytes::Embedded(&[]))),
            Some(_) => FileBytes::map(&path).map(Some).map_err(|error| Error::io(OPERATION, &path, error)),
        }
    }

    /// The names of all files, sorted; names that are not Unicode are left out.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names = match self {
            Self::Embedded(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>(),
            Self::Folder(folder) => {
                let fail = |error| Error::io(OPERATION, folder, error);
                let entries =
                    fs::read_dir(folder).map_err(fail)?.collect::<io::Result<Vec<_>>>().map_err(fail)?;
                entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
        };
        names.sort();
        Ok(names)
    }

    /// Refuses names that lead out of the checkpoint: a shard index is a stranger's file.
    fn check_name(&self, name: &str) -> Result<()> {
        let inside = !name.is_empty()
            && !name.contains(['\\', ':', '\0'])
            && Path::new(name).components().all(|component| matches!(component, Component::Normal(_)));
        if inside {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            OPERATION,
            format!("'{}' does not name a file inside the checkpoint", name.escape_debug()),
        )
        .with_context("path", self.root()))
    }

    fn root(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Embedded(_) => "embedded files".to_owned(),
        }
    }
}

fn embedded(files: &'static [(&'static str, &'static [u8])], name: &str) -> Option<&'static [u8]> {
    files.iter().find(|(candidate, _)| *candidate == name).map(|(_, content)| *content)
}

/// The length of the file at `path`, or `None` if there is nothing.
fn regular_file(path: &Path) -> Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
        Ok(_) => Err(Error::new(ErrorKind::Corrupt, OPERATION, "this should be a regular file")
            .with_context("path", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(OPERATION, path, error)),
    }
}
