//! Reading untrusted files; used by all crates.
//!
//! Whatever a checkpoint's folder contains, reading terminates and takes memory proportional to what is read:
//!
//! * Only regular files are read. They are opened without blocking, so a pipe cannot hang the reader, and
//!   checked again after opening, so they cannot be swapped.
//! * Each [`FileKind`] has a size limit, far above published checkpoints.
//! * Links are followed only if they stay in the folder, or lead into `blobs` of the Hugging Face cache that
//!   contains the folder.
//! * [`parse_json`] rejects text that would take more than 64 times its size plus 1 MiB when parsed.

mod json;
mod workplace;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};

pub use json::parse_json;
pub use workplace::{Resumable, Workplace, place_of, remove_unfinished};

const OPERATION: &str = "open checkpoint";

/// The kind of a file, which determines its size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// Settings such as `config.json` and `tokenizer_config.json`: 8 MiB.
    Settings,
    /// The index of sharded weights: 64 MiB.
    Index,
    /// A tokenizer's vocabulary and merges: 128 MiB.
    Tokenizer,
    /// A chat template: 1 MiB.
    Template,
    /// The manifest of a bundle: 64 MiB.
    Manifest,
    /// Other files that are read completely, to be copied: 256 MiB.
    Other,
}

impl FileKind {
    /// The kind of the file called `name` in a checkpoint.
    pub fn of(name: &str) -> Self {
        match name {
            "adapter_config.json"
            | "config.json"
            | "generation_config.json"
            | "tokenizer_config.json"
            | "special_tokens_map.json"
            | "added_tokens.json"
            | "chat_template.json" => Self::Settings,
            "tokenizer.json"
            | "tokenizer.model"
            | "vocab.json"
            | "merges.txt"
            | "rwkv_vocab_v20230424.txt" => Self::Tokenizer,
            "bundle.json" => Self::Manifest,
            _ if name.ends_with(".safetensors.index.json") => Self::Index,
            _ if name.ends_with(".jinja") => Self::Template,
            _ => Self::Other,
        }
    }

    /// The size limit in bytes.
    pub fn limit(self) -> u64 {
        match self {
            Self::Settings => 8 << 20,
            Self::Index | Self::Manifest => 64 << 20,
            Self::Tokenizer => 128 << 20,
            Self::Template => 1 << 20,
            Self::Other => 256 << 20,
        }
    }
}

/// Reads the file `name` of `folder`; `None` if it does not exist.
pub(crate) fn read_in(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let Some((file, length)) = open_in(folder, name)? else { return Ok(None) };
    read_open(file, length, &folder.join(name), FileKind::of(name).limit()).map(Some)
}

/// Opens the file `name` of `folder`, without following links out of it, and returns it with its length;
/// `None` if it does not exist.
///
/// # Errors
///
/// The errors of [`read_file`](crate::read_file).
pub fn open_in(folder: &Path, name: &str) -> Result<Option<(File, u64)>> {
    check_name(name, folder.display())?;
    match resolve(folder, name)? {
        Some(path) => open(&path, &folder.join(name)),
        None => Ok(None),
    }
}

/// Opens the regular file at `path`, which errors call `shown`, and returns it with its length; `None` if it
/// does not exist.
///
/// # Errors
///
/// [`Corrupt`](ErrorKind::Corrupt) for another kind of file or a link to a missing one;
/// [`Io`](ErrorKind::Io).
pub fn open(path: &Path, shown: &Path) -> Result<Option<(File, u64)>> {
    let failed = |error| Error::io(OPERATION, shown, error);
    let irregular = || {
        Error::new(ErrorKind::Corrupt, OPERATION, "this should be a regular file")
            .with_context("path", shown.display())
    };
    match open_regular(path) {
        Ok(Some(file)) => {
            let length = file.metadata().map_err(failed)?.len();
            Ok(Some((file, length)))
        }
        Ok(None) => Err(irregular()),
        Err(error) if is_absent(&error) => expect_no_link(path, shown).map(|()| None),
        Err(error) => Err(failed(error)),
    }
}

/// Refuses a dangling link: the checkpoint would mean something else without the file that it stood for.
fn expect_no_link(path: &Path, shown: &Path) -> Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.is_symlink()) {
        return Ok(());
    }
    let message = "this is a link to a missing file; download the file again, or remove the link";
    Err(Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", shown.display()))
}

/// Opens the file at `path` without blocking; `None` if it is not a regular file.
///
/// # Errors
///
/// Errors of the operating system.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    // To open some devices does something, so they are not opened.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    // The file checked earlier may have been replaced.
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Reads the regular file at `path`, of at most `limit` bytes. Files that programs write for themselves, such
/// as entries of a cache, are read by this: whatever lies in their place, reading ends and takes no more than
/// the limit.
///
/// # Errors
///
/// [`InvalidData`](io::ErrorKind::InvalidData) if it is not a regular file,
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) beyond the limit, before anything is read; errors of the
/// operating system.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not a regular file"))?;
    if file.metadata()?.len() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    read_bounded(file, limit)
}

/// Reads the remainder of `reader`, at most `limit` bytes.
///
/// # Errors
///
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) beyond the limit; the errors of the reader.
pub fn read_bounded(reader: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    #[allow(clippy::disallowed_methods, reason = "the one place with a limit")]
    reader.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}

/// Reads an open file of at most `limit` bytes, also where it grows meanwhile.
fn read_open(file: File, length: u64, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_large = || {
        let message = format!("the file has more than {limit} bytes, which is implausible");
        Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", path.display())
    };
    if length > limit {
        return Err(too_large());
    }
    match read_bounded(file, limit) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(too_large()),
        read => read.map_err(|error| Error::io(OPERATION, path, error)),
    }
}

/// Fails if the file `name` of `folder` is a link that leads out of it.
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput), naming the file; [`Io`](ErrorKind::Io).
pub fn expect_inside(folder: &Path, name: &str) -> Result<()> {
    resolve(folder, name).map(drop)
}

/// Where the file `name` of `folder` lies behind links; none where there is no such file.
fn resolve(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    let path = folder.join(name);
    let failed = |error| Error::io(OPERATION, &path, error);
    let real = match fs::canonicalize(&path) {
        Ok(real) => real,
        Err(error) if is_absent(&error) => return expect_no_link(&path, &path).map(|()| None),
        Err(error) => return Err(failed(error)),
    };
    let folder = fs::canonicalize(folder).map_err(failed)?;
    if real.starts_with(&folder) || blobs(&folder).is_some_and(|blobs| real.starts_with(blobs)) {
        return Ok(Some(real));
    }
    let message = "this is a link out of the folder; replace it by the file itself";
    Err(Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("path", path.display()))
}

/// The folder in which the Hugging Face cache keeps the contents of `folder`, where that is one of its
/// snapshots: `models--NAME/snapshots/REVISION`, of `models--NAME/blobs`.
fn blobs(folder: &Path) -> Option<PathBuf> {
    let snapshots =
        folder.ancestors().skip(1).find(|above| above.file_name().is_some_and(|name| name == "snapshots"))?;
    Some(snapshots.parent()?.join("blobs"))
}

/// Fails for a file name that leads out of the folder `place`, or would on another system. Names come from
/// indexes and manifests, which are untrusted files.
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput), naming the file and `place`.
pub fn check_name(name: &str, place: impl std::fmt::Display) -> Result<()> {
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
    .with_context("path", place))
}

pub(crate) fn embedded(files: &'static [(&'static str, &'static [u8])], name: &str) -> Option<&'static [u8]> {
    files.iter().find(|(candidate, _)| *candidate == name).map(|(_, content)| *content)
}

/// Whether there is no such file, also because what should be its folder is a file.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;
