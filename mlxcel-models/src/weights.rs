//! The weights of a checkpoint: one safetensors file, shards that an index lists, or GGUF files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use mlxcel_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::bytes::FileBytes;
use crate::element::ElementType;
use crate::files::parse_json;
use crate::gguf::{self, BlockType, Gguf, Renamed};
use crate::safetensors::{Entry, read_header};
use crate::source::Source;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const OPERATION: &str = "open weights";
/// What the bytes are called that are in no file, since they were computed.
const COMPUTED: &str = "computed";

/// All tensors of a checkpoint and the files that hold their bytes.
pub(crate) struct Weights {
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, Stored>,
}

struct WeightFile {
    name: String,
    location: String,
    bytes: Arc<FileBytes>,
}

/// Where a tensor is and what it is.
pub(crate) struct Stored {
    file: usize,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    range: Range<usize>,
    /// How its values are packed, where they are in blocks; its elements are the bytes of these then.
    pub(crate) blocks: Option<BlockType>,
}

impl Weights {
    /// The weights of GGUF files, by the names that families know.
    fn of_gguf(gguf: &Gguf) -> Result<Self> {
        let (renamed, computed) = gguf.renamed()?;
        let mut files: Vec<_> = gguf
            .files()
            .map(|(name, location, bytes)| WeightFile {
                name: name.to_owned(),
                location: location.to_owned(),
                bytes: Arc::clone(bytes),
            })
            .collect();
        let location = files.first().map(|file| file.location.clone()).unwrap_or_default();
        let mut tensors = BTreeMap::new();
        for Renamed { name, element, shape, blocks, source } in renamed {
            let (file, range) = match source {
                gguf::Source::File(file, range) => (file, range),
                gguf::Source::Computed(range) => (files.len(), range),
            };
            let stored = Stored { file, element, shape, range, blocks };
            if tensors.insert(name.clone(), stored).is_some() {
                let message = "two tensors of the file have the same role";
                return Err(Error::new(ErrorKind::Corrupt, OPERATION, message)
                    .with_context("tensor", name)
                    .with_context("path", location));
            }
        }
        files.push(WeightFile {
            name: COMPUTED.to_owned(),
            location,
            bytes: Arc::new(FileBytes::Owned(computed)),
        });
        Ok(Self { files, tensors })
    }

    /// Opens `model.safetensors`, else the shards of `model.safetensors.index.json`, as transformers does; or
    /// what is in GGUF files.
    pub(crate) fn open(source: &Source) -> Result<Self> {
        if let Source::Gguf(gguf) = source {
            return Self::of_gguf(gguf);
        }
        if let Some(bytes) = source.map(SINGLE)? {
            let mut weights = Self { files: Vec::new(), tensors: BTreeMap::new() };
            weights.tensors = weights.add_file(source, SINGLE, bytes)?.collect();
            return Ok(weights);
        }
        match source.read(INDEX)? {
            Some(index) => Self::open_shards(source, &index),
            None => Err(no_weights(source)?),
        }
    }

    fn open_shards(source: &Source, index: &[u8]) -> Result<Self> {
        let index_location = source.locate(INDEX);
        let corrupt = |message: &'static str| {
            Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", &index_location)
        };
        let index: Index =
            parse_json(&index_location, index, "this is not a weight index; download it again")?;

        let mut weights = Self { files: Vec::new(), tensors: BTreeMap::new() };
        let mut shards = HashMap::new();
        for shard in index.weight_map.values().collect::<BTreeSet<_>>() {
            let bytes = match source.map(shard) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        OPERATION,
                        "a shard that the index lists is missing; download the checkpoint again",
                    )
                    .with_context("path", source.locate(shard)));
                }
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    return Err(
                        corrupt("the index lists a file outside of the checkpoint").with_source(error)
                    );
                }
                Err(error) => return Err(error),
            };
            let tensors = weights.add_file(source, shard, bytes)?.collect::<HashMap<_, _>>();
            shards.insert(shard, tensors);
        }
        for (name, shard) in &index.weight_map {
            let Some(stored) = shards.get_mut(shard).and_then(|tensors| tensors.remove(name)) else {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    OPERATION,
                    "the shard lacks a tensor that the index places there; download the checkpoint again",
                )
                .with_context("tensor", name.escape_debug())
                .with_context("path", source.locate(shard)));
            };
            weights.tensors.insert(name.clone(), stored);
        }
        Ok(weights)
    }

    /// Keeps a file open and answers the tensors that it holds.
    fn add_file(
        &mut self,
        source: &Source,
        name: &str,
        bytes: FileBytes,
    ) -> Result<impl Iterator<Item = (String, Stored)> + use<>> {
        let location = source.locate(name);
        let entries = read_header(&location, &bytes)?;
        let file = self.files.len();
        self.files.push(WeightFile { name: name.to_owned(), location, bytes: Arc::new(bytes) });
        Ok(entries.into_iter().map(move |entry| {
            let Entry { name, element, shape, range } = entry;
            (name, Stored { file, element, shape, range, blocks: None })
        }))
    }

    /// The tensor called `name`, if there is one.
    pub(crate) fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// All tensors, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored))
    }

    /// The bytes of a tensor of these weights.
    pub(crate) fn bytes(&self, stored: &Stored) -> &[u8] {
        // The range was within the mapped file when its header was validated, and a map does not shrink.
        self.files.get(stored.file).and_then(|file| file.bytes.get(stored.range.clone())).unwrap_or_default()
    }

    /// The name of the file that holds a tensor, as errors print it.
    pub(crate) fn location(&self, stored: &Stored) -> &str {
        self.files.get(stored.file).map(|file| file.location.as_str()).unwrap_or_default()
    }

    /// The names and contents of all files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|file| (file.name.as_str(), &**file.bytes))
    }

    /// The files, without computed tensors.
    pub(crate) fn stored_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let stored = self.files.iter().filter(|file| !matches!(*file.bytes, FileBytes::Owned(_)));
        stored.map(|file| (file.name.as_str(), &**file.bytes))
    }

    /// The size of each file and when it was last written; none where that is not known.
    pub(crate) fn written(&self) -> Option<Vec<(usize, SystemTime)>> {
        let stored = self.files.iter().filter(|file| !matches!(*file.bytes, FileBytes::Owned(_)));
        stored.map(|file| Some((file.bytes.len(), file.bytes.written()?))).collect()
    }

    /// The number of files.
    pub(crate) fn file_count(&self) -> usize {
        self.files.len()
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The error for a checkpoint without weights, with what there is in their place.
fn no_weights(source: &Source) -> Result<Error> {
    let names = source.names()?;
    let with = |suffixes: &[&str]| {
        names.iter().find(|name| suffixes.iter().any(|suffix| name.ends_with(suffix))).map(String::as_str)
    };
    let place = source.locate(SINGLE);
    let error = if let Some(name) = with(&["adapter_model.safetensors"]) {
        Error::unsupported(
            OPERATION,
            format!(
                "the folder holds only an adapter ({name}); open its base model with room for adapters and load it \
                 there, or merge it into that and save the result"
            ),
        )
    } else if let Some(name) = with(&[".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"]) {
        Error::unsupported(
            OPERATION,
            format!(
                "the weights are not in the safetensors format ({name}); convert them, for example with \
                 transformers: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other_folder)`"
            ),
        )
    } else if let Some(name) = with(&[".gguf"]) {
        Error::new(
            ErrorKind::NotFound,
            OPERATION,
            format!("there are no safetensors weights for config.json; to open {name}, name that file"),
        )
    } else if let Some(name) = with(&[".safetensors"]) {
        Error::new(
            ErrorKind::NotFound,
            OPERATION,
            format!(
                "there is {name} and neither {SINGLE} nor {INDEX}; a single file must be named {SINGLE}, and \
                 shards need their index"
            ),
        )
    } else {
        Error::new(
            ErrorKind::NotFound,
            OPERATION,
            format!("there is neither {SINGLE} nor {INDEX}; download the checkpoint's weights"),
        )
    };
    Ok(error.with_context("path", place))
}
