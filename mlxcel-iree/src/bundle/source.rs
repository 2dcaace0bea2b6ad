//! Where a bundle's files are: in a folder, or in the application's binary.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use sha2::{Digest, Sha256};

use super::manifest::{FileEntry, MANIFEST, OPERATION};
use super::path::check_path;

/// A manifest names each weight and program with a hundred bytes or so; nothing sensible comes near this.
const LARGEST_MANIFEST: u64 = 64 << 20;

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

    /// The text of the manifest; none where there is none.
    pub(super) fn manifest(&self) -> Result<Option<Cow<'static, [u8]>>> {
        match &self.0 {
            ModelSource::Folder(folder) => {
                let path = folder.join(MANIFEST);
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(error) if is_absent(&error) => return Ok(None),
                    Err(error) => return Err(Error::io(OPERATION, &path, error)),
                };
                let mut text = Vec::new();
                let read = file.take(LARGEST_MANIFEST + 1).read_to_end(&mut text);
                read.map_err(|error| Error::io(OPERATION, &path, error))?;
                if text.len() as u64 > LARGEST_MANIFEST {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        OPERATION,
                        "this is too large for a manifest",
                    )
                    .with_context("path", path.display()));
                }
                Ok(Some(Cow::Owned(text)))
            }
            ModelSource::Embedded(files) => Ok(embedded(files, MANIFEST).map(Cow::Borrowed)),
            _ => Ok(None),
        }
    }

    /// The content of a file, which is what was written.
    pub(super) fn read(&self, file: &FileEntry) -> Result<Cow<'static, [u8]>> {
        check_path(&file.path)?;
        let content = match &self.0 {
            ModelSource::Folder(folder) => {
                let path = folder.join(&file.path);
                self.check_size(file, size(&path)?)?;
                let mut content = Vec::new();
                let read =
                    File::open(&path).and_then(|open| open.take(file.bytes + 1).read_to_end(&mut content));
                read.map_err(|error| Error::io(OPERATION, &path, error))?;
                Cow::Owned(content)
            }
            source => Cow::Borrowed(embedded_in(source, &file.path).ok_or_else(|| self.missing(file))?),
        };
        self.check_size(file, Some(content.len() as u64))?;
        self.check_sum(file, Sha256::digest(&content).into())?;
        Ok(content)
    }

    /// Whether a file is there with its size.
    pub(super) fn expect(&self, file: &FileEntry) -> Result<()> {
        check_path(&file.path)?;
        let found = match &self.0 {
            ModelSource::Folder(folder) => size(&folder.join(&file.path))?,
            source => embedded_in(source, &file.path).map(|content| content.len() as u64),
        };
        self.check_size(file, found)
    }

    /// Reads a file through and compares its checksum.
    pub(super) fn verify(&self, file: &FileEntry) -> Result<()> {
        let ModelSource::Folder(folder) = &self.0 else { return self.read(file).map(drop) };
        self.expect(file)?;
        let path = folder.join(&file.path);
        let sum = checksum(&path).map_err(|error| Error::io(OPERATION, &path, error))?;
        self.check_sum(file, sum)
    }

    fn check_size(&self, file: &FileEntry, found: Option<u64>) -> Result<()> {
        match found {
            None => Err(self.missing(file)),
            Some(bytes) if bytes != file.bytes => Err(Error::new(
                ErrorKind::Corrupt,
                OPERATION,
                "a file of the bundle has not the size that it had",
            )
            .with_context("path", self.locate(&file.path))
            .with_context("bytes", bytes)
            .with_context("written", file.bytes)),
            Some(_) => Ok(()),
        }
    }

    fn check_sum(&self, file: &FileEntry, sum: [u8; 32]) -> Result<()> {
        if hex(&sum).eq_ignore_ascii_case(&file.sha256) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            OPERATION,
            "a file of the bundle is not what was written: its checksum is wrong",
        )
        .with_context("path", self.locate(&file.path)))
    }

    fn missing(&self, file: &FileEntry) -> Error {
        Error::new(ErrorKind::NotFound, OPERATION, "a file of the bundle is missing")
            .with_context("path", self.locate(&file.path))
    }
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn embedded(files: &'static [(&'static str, &'static [u8])], path: &str) -> Option<&'static [u8]> {
    files.iter().find(|(name, _)| *name == path).map(|&(_, content)| content)
}

fn embedded_in(source: &ModelSource, path: &str) -> Option<&'static [u8]> {
    match source {
        ModelSource::Embedded(files) => embedded(files, path),
        _ => None,
    }
}

/// The size of the regular file at `path`, or none where there is nothing.
fn size(path: &Path) -> Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
        Ok(_) => Err(Error::new(ErrorKind::Corrupt, OPERATION, "this should be a regular file")
            .with_context("path", path.display())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(Error::io(OPERATION, path, error)),
    }
}

/// The SHA-256 of a file.
fn checksum(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
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

/// Whether there is no such file, also because what should be its folder is a file.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
