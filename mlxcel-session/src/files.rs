//! Reads the small files of a checkpoint: tokenizer and chat template, never weights.

use std::io::ErrorKind::{NotADirectory, NotFound};

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
pub(crate) use mlxcel_models::read_file as read;
use serde::de::DeserializeOwned;

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
    let message = "it does not hold the expected JSON";
    mlxcel_models::files::parse_json(&locate(source, name), &bytes, message).map(Some)
}

/// How many files a folder of templates may have.
const MOST_FILES: usize = 256;

/// The names of the files in `folder` of `source`, sorted; none where there is no such folder.
pub(crate) fn list(source: &ModelSource, folder: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    match source {
        ModelSource::Folder(path) => {
            let path = path.join(folder);
            let failed = |error| Error::io("list checkpoint folder", &path, error);
            let entries = match std::fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(names),
                Err(error) => return Err(failed(error)),
            };
            for entry in entries.take(MOST_FILES) {
                names.extend(entry.map_err(failed)?.file_name().into_string());
            }
        }
        ModelSource::Embedded(files) => {
            let inside = files.iter().filter_map(|(name, _)| name.strip_prefix(folder)?.strip_prefix('/'));
            names.extend(inside.map(str::to_owned));
        }
        _ => {}
    }
    names.sort();
    Ok(names)
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn pipes_and_oversized_tokenizers_are_rejected_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let source = ModelSource::from(folder.path());
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("tokenizer.json")).status();
        assert!(made.unwrap().success());
        assert_eq!(read(&source, "tokenizer.json").unwrap_err().kind(), ErrorKind::Corrupt);
        let large = std::fs::File::create(folder.path().join("tokenizer_config.json")).unwrap();
        large.set_len(1 << 30).unwrap();
        let error = read_json::<serde_json::Value>(&source, "tokenizer_config.json").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("chat_template.jinja")).unwrap();
        let error = read_text(&source, "chat_template.jinja").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
