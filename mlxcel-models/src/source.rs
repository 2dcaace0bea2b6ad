//! Where a checkpoint's files are: in a folder, embedded in the application's binary, or inside GGUF files.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};

use crate::bytes::FileBytes;
use crate::files;
use crate::gguf::{self, Gguf, Place};

const OPERATION: &str = "open checkpoint";

/// Reads the file `name` of `source`; `None` if it does not exist or the source has no files. For GGUF
/// models, `config.json`, `generation_config.json`, `tokenizer.json` and `tokenizer_config.json` are
/// generated from the metadata, unless the opened folder contains them.
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput) for a name or link that leads out of the folder;
/// [`Corrupt`](ErrorKind::Corrupt) for a file that is not regular, a dangling link, or a file that exceeds
/// the limit of its [`FileKind`](files::FileKind); [`Io`](ErrorKind::Io) for one that cannot be read.
pub fn read_file(source: &ModelSource, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
    let place = match source {
        ModelSource::Folder(path) => Place::at(path)?,
        ModelSource::Embedded(held) => Place::embedded(held)?,
        _ => None,
    };
    if let Some(place) = place {
        return gguf::read(place, name);
    }
    match source {
        ModelSource::Folder(folder) => Ok(files::read_in(folder, name)?.map(Cow::Owned)),
        ModelSource::Embedded(held) => {
            files::check_name(name, "embedded files")?;
            Ok(files::embedded(held, name).map(Cow::Borrowed))
        }
        // What an engine makes by itself has no files.
        _ => Ok(None),
    }
}

/// A set of named files.
pub(crate) enum Source {
    /// A folder on disk.
    Folder(PathBuf),
    /// Names and contents embedded in the binary.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// GGUF files; the other files are generated from their metadata.
    Gguf(Box<Gguf>),
}

impl Source {
    /// The folder at `path`, which must exist, or the GGUF file.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        if let Some(place) = Place::at(path)? {
            return Ok(Self::Gguf(Box::new(Gguf::open(place)?)));
        }
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Self::Folder(path.to_path_buf())),
            Ok(_) => Err(Error::new(
                ErrorKind::InvalidInput,
                OPERATION,
                "this is no GGUF file; give one, or the folder that holds config.json and the safetensors weights",
            )
            .with_context("path", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
                ErrorKind::NotFound,
                OPERATION,
                "the folder does not exist; pass the folder of a downloaded Hugging Face checkpoint",
            )
            .with_context("path", path.display())
            .with_source(error)),
            Err(error) => Err(Error::io(OPERATION, path, error)),
        }
    }

    /// Files in the binary.
    pub(crate) fn embedded(files: &'static [(&'static str, &'static [u8])]) -> Result<Self> {
        Ok(match Place::embedded(files)? {
            Some(place) => Self::Gguf(Box::new(Gguf::open(place)?)),
            None => Self::Embedded(files),
        })
    }

    /// The name of a file as errors print it.
    pub(crate) fn locate(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => folder.join(name).display().to_string(),
            Self::Embedded(_) => format!("{name} (embedded)"),
            Self::Gguf(gguf) => gguf.locate(name),
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
            Self::Gguf(gguf) => gguf.read(name),
        }
    }

    /// Maps a file of weights, or `None` if there is none of that name. It may be a link to anywhere: weights
    /// are large, and people keep them where there is room.
    pub(crate) fn map(&self, name: &str) -> Result<Option<FileBytes>> {
        files::check_name(name, self.root())?;
        match self {
            Self::Embedded(contents) => Ok(files::embedded(contents, name).map(FileBytes::Embedded)),
            Self::Folder(folder) => FileBytes::open(&folder.join(name)),
            // Its weights are in itself.
            Self::Gguf(_) => Ok(None),
        }
    }

    /// The names of all files, sorted; folders, and names that are not Unicode, are left out. For GGUF files
    /// those that the metadata makes, and those beside them if a folder was opened.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names = match self {
            Self::Embedded(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>(),
            Self::Folder(folder) => names_at(folder)?,
            Self::Gguf(gguf) => {
                let mut names = gguf.names();
                if let Some(folder) = gguf.place().path().filter(|path| path.is_dir()) {
                    names.extend(names_at(folder)?);
                }
                names
            }
        };
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The names of the files in `folder`, without its own; none if there is no such folder.
    pub(crate) fn names_in(&self, folder: &str) -> Result<Vec<String>> {
        let root = match self {
            Self::Embedded(files) => {
                let inside =
                    files.iter().filter_map(|(name, _)| name.strip_prefix(folder)?.strip_prefix('/'));
                return Ok(inside.map(str::to_owned).collect());
            }
            Self::Folder(root) => Some(root.as_path()),
            Self::Gguf(gguf) => gguf.place().path(),
        };
        match root.map(|root| root.join(folder)).filter(|folder| folder.is_dir()) {
            Some(folder) => names_at(&folder),
            None => Ok(Vec::new()),
        }
    }

    fn root(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Embedded(_) => "embedded files".to_owned(),
            Self::Gguf(gguf) => gguf.place().shown(),
        }
    }
}

/// The names of the files in a folder.
fn names_at(folder: &Path) -> Result<Vec<String>> {
    let fail = |error| Error::io(OPERATION, folder, error);
    let entries = fs::read_dir(folder).map_err(fail)?.collect::<io::Result<Vec<_>>>().map_err(fail)?;
    let files = entries.into_iter().filter(|entry| !entry.path().is_dir());
    Ok(files.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
