//! The small files of a Hugging Face folder, generated from metadata.

use std::borrow::Cow;

use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::header::OPERATION;
use super::{Gguf, Place, architecture, modules, tokenizer};
use crate::files::FileKind;

/// The files that metadata makes.
const NAMES: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "rwkv_vocab_v20230424.txt",
    "tokenizer_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "3_Dense/config.json",
];

/// The file `name` of the model at a place, which is opened only where its metadata is asked for.
///
/// # Errors
///
/// The errors of [`Gguf::open`] and [`Gguf::read`].
pub(crate) fn read(place: Place, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
    crate::files::check_name(name, place.shown())?;
    if !NAMES.contains(&name) {
        return place.read_own(name);
    }
    Gguf::open(place)?.read(name)
}

impl Gguf {
    /// The file `name` of the model: one that lies beside it and is its own, else what the metadata says;
    /// none where neither is.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        crate::files::check_name(name, self.place.shown())?;
        if let Some(content) = self.place.read_own(name)? {
            return Ok(Some(content));
        }
        let made = match name {
            "config.json" => Some(write(architecture::config(self)?)),
            "generation_config.json" => tokenizer::generation_config(self)?.map(write),
            "tokenizer.json" => tokenizer::tokenizer(self)?,
            "rwkv_vocab_v20230424.txt" => tokenizer::world_vocabulary(self)?,
            "tokenizer_config.json" => tokenizer::tokenizer_config(self)?.map(write),
            "modules.json" => modules::modules(self)?.map(|modules| modules.to_string()),
            "1_Pooling/config.json" => modules::pooling_config(self)?.map(write),
            _ => match name.strip_suffix("/config.json") {
                Some(folder) => modules::dense_config(self, folder)?.map(write),
                None => None,
            },
        };
        let limit = FileKind::of(name).limit();
        match made {
            Some(text) if text.len() as u64 > limit => {
                let message = format!("what the metadata makes {name} is more than {limit} bytes");
                Err(Error::new(ErrorKind::Corrupt, OPERATION, message)
                    .with_context("path", self.metadata().location))
            }
            made => Ok(made.map(|text| Cow::Owned(text.into_bytes()))),
        }
    }

    /// The names of the files that the metadata makes, without those in folders.
    pub(crate) fn names(&self) -> Vec<String> {
        NAMES.iter().filter(|name| !name.contains('/')).map(|&name| name.to_owned()).collect()
    }

    /// What errors call a file that the metadata makes.
    pub(crate) fn locate(&self, name: &str) -> String {
        if NAMES.contains(&name) {
            format!("{} ({name} of its metadata)", self.metadata().location)
        } else {
            self.place.locate(name)
        }
    }
}

/// A file of settings.
fn write(fields: Map<String, Value>) -> String {
    Value::Object(fields).to_string()
}
