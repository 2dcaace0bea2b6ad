//! The location of GGUF files: a file, a folder with a single model, or the application's binary.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};

use super::header::MAGIC;
use super::split::{files_of, gguf_models};
use crate::bytes::FileBytes;
use crate::files;

const OPERATION: &str = "open checkpoint";
const EXTENSION: &str = ".gguf";
const CONFIG: &str = "config.json";

/// Files in the binary, by name.
type Embedded = &'static [(&'static str, &'static [u8])];

/// A model in GGUF files, found and not opened.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    root: Root,
    /// The path that was passed to open the model.
    path: Option<PathBuf>,
    /// The files that the model is split into.
    names: Vec<String>,
}

#[derive(Clone, Debug)]
enum Root {
    /// One file of a folder was named; other files in the folder do not belong to the model.
    File(PathBuf),
    /// The whole folder belongs to the model.
    Folder(PathBuf),
    Embedded(Embedded),
}

impl Place {
    /// The model that `path` names: a GGUF file, or a folder that has one and no `config.json`. None for
    /// anything else.
    pub(crate) fn at(path: &Path) -> Result<Option<Self>> {
        let Ok(metadata) = fs::metadata(path) else { return Ok(None) };
        if metadata.is_file() {
            return Self::of_file(path);
        }
        if !metadata.is_dir() || path.join(CONFIG).exists() {
            return Ok(None);
        }
        let Ok(entries) = fs::read_dir(path) else { return Ok(None) };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names: Vec<_> = names.filter(|name| name.ends_with(EXTENSION)).collect();
        Self::among(&names, Root::Folder(path.to_owned()), path.display())
    }

    /// The model that is embedded under one of these names, where there is no `config.json`.
    pub(crate) fn embedded(files: Embedded) -> Result<Option<Self>> {
        if files.iter().any(|(name, _)| *name == CONFIG) {
            return Ok(None);
        }
        let names: Vec<_> = files.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self::among(&names, Root::Embedded(files), "embedded files")
    }

    fn of_file(path: &Path) -> Result<Option<Self>> {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| name.ends_with(EXTENSION) || has_magic(path)) else {
            return Ok(None);
        };
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Some(Self { root: Root::File(folder), path: Some(path.to_owned()), names: files_of(name) }))
    }

    /// The only model among files, if there is one.
    fn among(names: &[String], root: Root, shown: impl std::fmt::Display) -> Result<Option<Self>> {
        let models = gguf_models(names);
        let [model] = &models[..] else {
            if models.is_empty() {
                return Ok(None);
            }
            return Err(Error::new(
                ErrorKind::InvalidInput,
                OPERATION,
                "there are several models in GGUF files; name one of the files",
            )
            .with_context("path", shown)
            .with_context("files", models.join(", ")));
        };
        let names = files_of(model);
        let path = match &root {
            Root::Folder(folder) => Some(folder.clone()),
            Root::File(_) | Root::Embedded(_) => None,
        };
        Ok(Some(Self { root, path, names }))
    }

    /// The files that the model is split into, in their order.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The file that has the metadata.
    pub(super) fn first(&self) -> &str {
        self.names.first().map(String::as_str).unwrap_or_default()
    }

    /// The path that was passed to open the model: one of its files, or the folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The model as errors print it.
    pub(crate) fn shown(&self) -> String {
        self.locate(self.first())
    }

    /// The name of a file as errors print it.
    pub(crate) fn locate(&self, name: &str) -> String {
        match &self.root {
            Root::File(folder) | Root::Folder(folder) => folder.join(name).display().to_string(),
            Root::Embedded(_) => format!("{name} (embedded)"),
        }
    }

    /// Maps one of the files; it may be a link to anywhere, as weights of all formats.
    pub(super) fn map(&self, name: &str) -> Result<Option<FileBytes>> {
        match &self.root {
            Root::File(folder) | Root::Folder(folder) => FileBytes::open(&folder.join(name)),
            Root::Embedded(contents) => Ok(files::embedded(contents, name).map(FileBytes::Embedded)),
        }
    }

    /// Refuses files that are links out of their folder.
    pub(crate) fn expect_inside(&self) -> Result<()> {
        let (Root::File(folder) | Root::Folder(folder)) = &self.root else { return Ok(()) };
        self.names.iter().try_for_each(|name| files::expect_inside(folder, name))
    }

    /// Reads a small file that lies beside the model and is its own; none where there is no such file.
    pub(crate) fn read_own(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        match &self.root {
            Root::File(_) => Ok(None),
            Root::Folder(folder) => Ok(files::read_in(folder, name)?.map(Cow::Owned)),
            Root::Embedded(contents) => Ok(files::embedded(contents, name).map(Cow::Borrowed)),
        }
    }
}

/// Whether a file begins as GGUF files do, whatever its name.
fn has_magic(path: &Path) -> bool {
    let read = || -> io::Result<bool> {
        let Some(mut file) = files::open_regular(path)? else { return Ok(false) };
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic)?;
        Ok(magic == *MAGIC)
    };
    read().unwrap_or(false)
}
