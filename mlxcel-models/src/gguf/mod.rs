//! GGUF files, which contain a complete model: network, tokenizer and chat template.
//!
//! Only this module knows the format. It provides the contents of an equivalent Hugging Face folder:
//! [`config.json`](architecture), `tokenizer.json` and the other small files, generated from metadata, and
//! tensors under the names that families know, as before `llama.cpp`'s conversion ([`tensors`]). An
//! architecture is an entry in a table ([`architecture`]).

mod adapter;
mod architecture;
mod block;
mod cursor;
#[cfg(test)]
mod draft;
mod files;
mod header;
mod metadata;
mod modules;
mod place;
mod split;
mod tensors;
mod tokenizer;
mod value;

use std::collections::HashMap;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::bytes::FileBytes;
pub(crate) use adapter::Lora;
pub(crate) use architecture::Rows;
pub use block::BlockType;
pub(crate) use files::read;
use header::{Header, OPERATION, Tensor};
use metadata::Metadata;
pub(crate) use place::Place;
pub use split::{GgufSplit, gguf_models};
pub(crate) use tensors::{Renamed, Source};

/// A model in one GGUF file, or in the several that it is split into.
pub(crate) struct Gguf {
    place: Place,
    parts: Vec<Part>,
    /// Of each tensor the number of its file, and its own in there.
    index: HashMap<String, (usize, usize)>,
}

/// One of the files.
struct Part {
    name: String,
    location: String,
    bytes: Arc<FileBytes>,
    header: Header,
}

impl Gguf {
    /// Maps the files of a model and reads what stands before their tensors.
    pub(crate) fn open(place: Place) -> Result<Self> {
        let first = Part::open(&place, place.first())?;
        let mut this = Self { place, parts: vec![first], index: HashMap::new() };
        this.add_splits()?;
        for (number, part) in this.parts.iter().enumerate() {
            for (at, tensor) in part.header.tensors.iter().enumerate() {
                if this.index.insert(tensor.name.clone(), (number, at)).is_some() {
                    let message = "two files of the model have the tensor";
                    return Err(Error::new(ErrorKind::Corrupt, OPERATION, message)
                        .with_context("tensor", tensor.name.escape_debug())
                        .with_context("path", &part.location));
                }
            }
        }
        Ok(this)
    }

    /// Opens the other files, where the model is split.
    fn add_splits(&mut self) -> Result<()> {
        const COUNT: &str = "split.count";
        let count = self.metadata().size(COUNT)?.unwrap_or(1);
        let names = self.place.names();
        if count != names.len() && count > 1 {
            let message = format!(
                "the model is split into {count} files, and this one's name says {}; their names end like \
                 -00001-of-{count:05}.gguf",
                names.len()
            );
            return Err(self.metadata().corrupt(COUNT, message));
        }
        for name in names.iter().skip(1) {
            let part = Part::open(&self.place, name)?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// The architecture; none if it is not known.
    pub(crate) fn architecture(&self) -> Option<&'static str> {
        architecture::find(self).ok().map(|architecture| architecture.name)
    }

    /// What the first file says of the model.
    fn metadata(&self) -> Metadata<'_> {
        // There is a first one from the beginning.
        let part = &self.parts[0];
        Metadata { location: &part.location, file: &part.bytes, entries: &part.header.metadata }
    }

    /// A tensor by the name that it has in the file, and its bytes.
    fn tensor(&self, name: &str) -> Option<(&Tensor, &[u8])> {
        let (part, at) = *self.index.get(name)?;
        let part = self.parts.get(part)?;
        let tensor = part.header.tensors.get(at)?;
        Some((tensor, part.bytes.get(tensor.range.clone())?))
    }

    /// All tensors.
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.parts.iter().flat_map(|part| &part.header.tensors)
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The name of each file, what errors call it, and its bytes.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str, &Arc<FileBytes>)> {
        self.parts.iter().map(|part| (part.name.as_str(), part.location.as_str(), &part.bytes))
    }
}

impl Part {
    fn open(place: &Place, name: &str) -> Result<Self> {
        let location = place.locate(name);
        let bytes = place.map(name)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                OPERATION,
                "a file of the model is missing; a model that is split needs all of its files in one folder",
            )
            .with_context("path", &location)
        })?;
        let header = Header::read(&location, &bytes)?;
        Ok(Self { name: name.to_owned(), location, bytes: Arc::new(bytes), header })
    }
}

/// The order of rows in files of the architecture with this name.
pub(crate) fn rows_of(architecture: &str) -> Rows {
    architecture::named(architecture).map_or(Rows::Halves, |found| found.rows)
}

#[cfg(test)]
mod tests;
