//! Folders for inputs that are files.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::Result;
use mlxcel_models::{Checkpoint, WeightRef};
use tempfile::TempDir;

use crate::corpus::repository;
use crate::outcome::Outcome;

/// A checkpoint of the fixtures, by its name: one of each architecture, or of each packed form.
pub(super) fn fixture(name: &str) -> PathBuf {
    let packed = repository().join("fixtures/formats").join(name);
    if packed.is_dir() { packed } else { repository().join("fixtures/architectures").join(name) }
}

/// The checkpoint of the fixtures that a method quantized, as `quant_method` names it.
pub(super) fn quantized(method: &str) -> Option<&'static str> {
    QUANTIZED.iter().find(|(known, _)| *known == method).map(|(_, fixture)| *fixture)
}

/// Methods of quantization, and a checkpoint of each.
pub(super) const QUANTIZED: [(&str, &str); 5] = [
    ("gptq", "gptq-act-order"),
    ("awq", "awq"),
    ("compressed-tensors", "compressed-w4"),
    ("fp8", "fp8-block"),
    ("mxfp4", "gpt_oss-mxfp4"),
];

pub(super) fn fixtures() -> Vec<String> {
    let entries = fs::read_dir(repository().join("fixtures/architectures"));
    let names = entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| fixture(name).is_dir()).collect();
    names.sort();
    names
}

/// The model with a tokenizer and a chat template.
pub(super) fn storyteller() -> PathBuf {
    repository().join("fixtures/storyteller-4bit")
}

/// A folder in which every run finds what it wrote itself, and links to fixtures.
pub(super) struct Place {
    folder: OnceCell<TempDir>,
}

impl Place {
    pub(super) const fn new() -> Self {
        Self { folder: OnceCell::new() }
    }

    /// The folder.
    ///
    /// # Panics
    ///
    /// Where the system gives none.
    #[allow(clippy::expect_used, reason = "no input has a part in it")]
    pub(super) fn path(&self) -> &Path {
        self.folder.get_or_init(|| tempfile::tempdir().expect("a temporary folder")).path()
    }

    /// Writes a file.
    ///
    /// # Panics
    ///
    /// Where it cannot be written.
    #[allow(clippy::expect_used, reason = "no input has a part in it")]
    pub(super) fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.path().join(name), content).expect("writing a temporary file");
    }

    /// Removes a file, if there is one.
    pub(super) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path().join(name));
    }

    /// Makes `name` a link to `target`, as weights may be.
    ///
    /// # Panics
    ///
    /// Where there can be no link.
    #[allow(clippy::expect_used, reason = "no input has a part in it")]
    pub(super) fn link(&self, name: &str, target: &Path) {
        self.remove(name);
        #[cfg(unix)]
        std::os::unix::fs::symlink(target, self.path().join(name)).expect("a link");
        #[cfg(not(unix))]
        drop(fs::copy(target, self.path().join(name)).expect("a copy"));
    }
}

/// What a model's file or folder describes, whose tensors are all as long as their types say.
pub(super) fn describe(checkpoint: &Checkpoint) -> Result<Outcome> {
    checkpoint.fingerprint();
    let decoder = checkpoint.decoder()?;
    for weight in decoder.weights().flat_map(WeightRef::tensors) {
        assert_eq!(checkpoint.weight(weight)?.bytes.len(), weight.byte_len(), "{weight:?}");
    }
    Ok(Outcome::new(decoder))
}
