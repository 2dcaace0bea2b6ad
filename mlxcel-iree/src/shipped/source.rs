//! Where a bundle's files are: in a folder, or in the application's binary.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use mlxcel_iree_runtime::MappedFile;
use mlxcel_iree_target::manifest::{FileEntry, MANIFEST, OPERATION};
use mlxcel_iree_target::{check_path, hex};
use mlxcel_models::{files, read_file};
use sha2::{Digest, Sha256};

/// How much of a file is read at once where only its checksum is wanted.
const BLOCK: usize = 1 << 20;

/// The files of a bundle.
#[derive(Clone, Debug)]
pub(super) struct Source(ModelSource);

impl Source {
    /// The files of `source`, if it has any.
    pub(super) fn new(source: &ModelSource) -> Self {
        Self(source.clone())
    }

    /// Where the file at `path` is, as errors print it.
    pub(super) fn locate(&self, path: &str) -> String {
        match &self.0 {
            ModelSource::Folder(folder) => folder.join(path).display().to_string(),
            _ => format!("{path} (embedded)"),
        }
    }

    /// Whether these are the files of the folder at `path`; without one, embedded files.
    pub(super) fn is_at(&self, path: Option<&Path>) -> bool {
        match (&self.0, path) {
            (ModelSource::Folder(folder), Some(path)) => folder == path,
            (ModelSource::Embedded(_), None) => true,
            _ => false,
        }
    }

    /// The text of the manifest, if there is one.
    pub(super) fn manifest(&self) -> Result<Option<Cow<'static, [u8]>>> {
        read_file(&self.0, MANIFEST)
    }

    /// The content of a file, which is what was written.
    pub(super) fn read(&self, file: &FileEntry) -> Result<Cow<'static, [u8]>> {
        check_path(&file.path)?;
        let content = match &self.0 {
            ModelSource::Folder(folder) => {
                let read = files::read_bounded(self.open(folder, file)?, file.bytes);
                Cow::Owned(read.map_err(|error| Error::io(OPERATION, &folder.join(&file.path), error))?)
            }
            _ => Cow::Borrowed(self.embedded(file)?),
        };
        self.check_size(file, content.len() as u64)?;
        self.check_sum(file, Sha256::digest(&content).into())?;
        Ok(content)
    }

    /// The content of a file that has its size, mapped and not read.
    pub(super) fn map(&self, file: &FileEntry) -> Result<Arc<dyn AsRef<[u8]> + Send + Sync>> {
        check_path(&file.path)?;
        let ModelSource::Folder(folder) = &self.0 else {
            let embedded = self.embedded(file)?;
            self.check_size(file, embedded.len() as u64)?;
            return Ok(Arc::new(embedded));
        };
        let mapped = MappedFile::new(&self.open(folder, file)?);
        Ok(Arc::new(mapped.map_err(|error| Error::io(OPERATION, &folder.join(&file.path), error))?))
    }

    /// The content of a file in the binary.
    fn embedded(&self, file: &FileEntry) -> Result<&'static [u8]> {
        let ModelSource::Embedded(files) = &self.0 else { return Err(self.missing(file)) };
        let found = files.iter().find(|(name, _)| *name == file.path);
        found.map(|&(_, content)| content).ok_or_else(|| self.missing(file))
    }

    /// Opens a file that has its size.
    fn open(&self, folder: &Path, file: &FileEntry) -> Result<File> {
        let (open, length) = files::open_in(folder, &file.path)?.ok_or_else(|| self.missing(file))?;
        self.check_size(file, length)?;
        Ok(open)
    }

    /// Reads a file through and compares its checksum.
    pub(super) fn verify(&self, file: &FileEntry) -> Result<()> {
        let ModelSource::Folder(folder) = &self.0 else { return self.read(file).map(drop) };
        check_path(&file.path)?;
        let sum = checksum(self.open(folder, file)?)
            .map_err(|error| Error::io(OPERATION, &folder.join(&file.path), error))?;
        self.check_sum(file, sum)
    }

    fn check_size(&self, file: &FileEntry, bytes: u64) -> Result<()> {
        if bytes == file.bytes {
            return Ok(());
        }
        Err(self
            .fail(ErrorKind::Corrupt, "a file of the bundle has changed its size", file)
            .with_context("bytes", bytes)
            .with_context("written", file.bytes))
    }

    fn check_sum(&self, file: &FileEntry, sum: [u8; 32]) -> Result<()> {
        if hex(&sum).eq_ignore_ascii_case(&file.sha256) {
            return Ok(());
        }
        Err(self.fail(ErrorKind::Corrupt, "a file of the bundle is corrupt: its checksum is wrong", file))
    }

    fn missing(&self, file: &FileEntry) -> Error {
        self.fail(ErrorKind::NotFound, "a file of the bundle is missing", file)
    }

    fn fail(&self, kind: ErrorKind, message: &'static str, file: &FileEntry) -> Error {
        Error::new(kind, OPERATION, message).with_context("path", self.locate(&file.path))
    }
}

/// The SHA-256 of a file.
fn checksum(mut file: File) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(count) => hash.update(&block[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
