//! The small files of a checkpoint that this crate reads itself: tokenizer, chat template. Never weights.

use std::borrow::Cow;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use serde::de::DeserializeOwned;

/// The content of the file `name` of `source`; none where there is no such file.
pub(crate) fn read(source: &ModelSource, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
    match source {
        ModelSource::Folder(folder) => {
            let path = folder.join(name);
            match std::fs::read(&path) {
                Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                Err(error) if is_absent(&error) => Ok(None),
                Err(error) => Err(Error::io("read checkpoint file", &path, error)),
            }
        }
        ModelSource::Embedded(files) => {
            Ok(files.iter().find(|(file, _)| *file == name).map(|&(_, content)| Cow::Borrowed(content)))
        }
        // What an engine makes by itself has no files.
        _ => Ok(None),
    }
}

/// The file `name` as text; none where there is no such file.
pub(crate) fn read_text(source: &ModelSource, name: &str) -> Result<Option<String>> {
    let Some(bytes) = read(source, name)? else { return Ok(None) };
    let text = String::from_utf8(bytes.into_owned())
        .map_err(|error| corrupt(source, name, "it is not UTF-8 text").with_source(error))?;
    Ok(Some(text))
}

/// The file `name` as JSON; none where there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(source: &ModelSource, name: &str) -> Result<Option<T>> {
    let Some(bytes) = read(source, name)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| corrupt(source, name, "it does not hold the expected JSON").with_source(error))
}

/// An [`ErrorKind::Corrupt`] about the file `name`.
pub(crate) fn corrupt(source: &ModelSource, name: &str, message: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, "read checkpoint file", message).with_context("path", locate(source, name))
}

/// Where the file `name` of `source` is, or would be.
pub(crate) fn locate(source: &ModelSource, name: &str) -> String {
    match source {
        ModelSource::Folder(folder) => folder.join(name).display().to_string(),
        _ => name.to_owned(),
    }
}

/// Whether there is no such file, also because what should be its folder is a file.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}
