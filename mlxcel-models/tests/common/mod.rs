//! Checkpoints in the making: a small one in memory, to be changed and then written to a folder.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod draft_heads;
pub(crate) mod values;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::{Checkpoint, Decoder, WeightRef};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A path in this repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A checkpoint that is not written yet.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

/// A checkpoint in a folder that lives as long as this.
pub(crate) struct Written {
    pub(crate) folder: TempDir,
}

impl Draft {
    /// A Llama with one layer: 8 tokens, hidden 8, MLP 12, 2 query heads over 1 key/value head of 4, tied
    /// head.
    pub(crate) fn llama() -> Self {
        Self::llama_of(8, 12)
    }

    /// The same with hidden 128, MLP 256 and heads of 64.
    pub(crate) fn wide() -> Self {
        Self::llama_of(128, 256)
    }

    fn llama_of(hidden: usize, intermediate: usize) -> Self {
        let config = json!({
            "model_type": "llama", "vocab_size": 8, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        });
        let mut draft = Self { config, tensors: BTreeMap::new() };
        for (name, shape) in [
            ("model.embed_tokens.weight", &[8, hidden][..]),
            ("model.norm.weight", &[hidden]),
            ("model.layers.0.input_layernorm.weight", &[hidden]),
            ("model.layers.0.post_attention_layernorm.weight", &[hidden]),
            ("model.layers.0.self_attn.q_proj.weight", &[hidden, hidden]),
            ("model.layers.0.self_attn.k_proj.weight", &[hidden / 2, hidden]),
            ("model.layers.0.self_attn.v_proj.weight", &[hidden / 2, hidden]),
            ("model.layers.0.self_attn.o_proj.weight", &[hidden, hidden]),
            ("model.layers.0.mlp.gate_proj.weight", &[intermediate, hidden]),
            ("model.layers.0.mlp.up_proj.weight", &[intermediate, hidden]),
            ("model.layers.0.mlp.down_proj.weight", &[hidden, intermediate]),
        ] {
            draft.put(name, Dtype::BF16, shape);
        }
        draft
    }

    /// The checkpoint of this name among the fixtures, to be changed.
    pub(crate) fn fixture(name: &str) -> Self {
        Self::of(&repository("fixtures/architectures").join(name))
    }

    /// The checkpoint of this name among those with a draft head, to be changed.
    pub(crate) fn draft_head(name: &str) -> Self {
        Self::of(&repository("fixtures/draft-heads").join(name))
    }

    /// The EAGLE-3 head of the fixture of this name, to be changed.
    pub(crate) fn eagle3_head(name: &str) -> Self {
        Self::of(&repository("fixtures/eagle3").join(format!("{name}-head")))
    }

    fn of(folder: &Path) -> Self {
        let config = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        let content = fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&content).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        };
        Self { config, tensors: file.tensors().into_iter().map(tensor).collect() }
    }

    /// Renames the tensors that `rename` has another name for.
    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors = self.tensors.into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        self
    }

    /// Takes tensors out: these, consecutively, are the bytes of one.
    pub(crate) fn taken(&mut self, names: impl IntoIterator<Item = String>) -> Vec<u8> {
        let bytes = |name: String| self.tensors.remove(&name).unwrap_or_else(|| panic!("{name}")).2;
        names.into_iter().flat_map(bytes).collect()
    }

    /// Sets a field of the settings.
    pub(crate) fn set(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// Removes a field of the settings.
    pub(crate) fn unset(mut self, key: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(key);
        self
    }

    /// Adds or replaces a tensor; its bytes differ from those of other names.
    pub(crate) fn put(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        let length = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let seed = name.bytes().fold(7u8, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte));
        let bytes = (0..length).map(|index| seed.wrapping_add(index as u8)).collect();
        self.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), bytes));
    }

    /// [`put`](Self::put), by value.
    pub(crate) fn with(mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Self {
        self.put(name, dtype, shape);
        self
    }

    /// Removes a tensor.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).unwrap();
        self
    }

    /// The content of a safetensors file with the tensors whose names satisfy `keep`.
    pub(crate) fn safetensors(&self, keep: impl Fn(&str) -> bool) -> Vec<u8> {
        let views =
            self.tensors.iter().filter(|(name, _)| keep(name)).map(|(name, (dtype, shape, bytes))| {
                (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
            });
        safetensors::serialize(views, None).unwrap()
    }

    /// Writes settings and weights into a new folder.
    pub(crate) fn write(&self) -> Written {
        let written = Written { folder: tempfile::tempdir().unwrap() };
        written.put("config.json", self.config.to_string().as_bytes());
        written.put("model.safetensors", &self.safetensors(|_| true));
        written
    }

    /// Writes settings, and weights in two shards: one with the layers, one with the rest.
    pub(crate) fn write_sharded(&self) -> Written {
        let in_layers = |name: &str| name.contains(".layers.");
        let written = Written { folder: tempfile::tempdir().unwrap() };
        written.put("config.json", self.config.to_string().as_bytes());
        written.put("model-00001-of-00002.safetensors", &self.safetensors(in_layers));
        written.put("model-00002-of-00002.safetensors", &self.safetensors(|name| !in_layers(name)));
        let shard = |name: &String| {
            let number = if in_layers(name) { 1 } else { 2 };
            (name.clone(), json!(format!("model-0000{number}-of-00002.safetensors")))
        };
        let map = self.tensors.keys().map(shard).collect::<serde_json::Map<_, _>>();
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        written.put("model.safetensors.index.json", index.to_string().as_bytes());
        written
    }

    /// The description of the written checkpoint.
    pub(crate) fn decoder(&self) -> Result<Decoder> {
        self.write().open()?.decoder()
    }
}

impl Written {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    pub(crate) fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(self.folder.path())
    }

    /// The error of opening and describing it.
    pub(crate) fn refusal(&self) -> Error {
        self.open().and_then(|checkpoint| checkpoint.decoder()).unwrap_err()
    }
}

/// The weight of a decoder whose tensor has this name.
pub(crate) fn weight<'a>(decoder: &'a Decoder, tensor: &str) -> &'a WeightRef {
    decoder.weights().find(|weight| weight.tensor == tensor).unwrap()
}

/// Holds the kind of an error, and the field that it names.
#[track_caller]
pub(crate) fn assert_field(error: &Error, kind: ErrorKind, field: &str, what: &str) {
    assert_eq!((error.kind(), error.context("field")), (kind, Some(field)), "{what}: {error}");
}

/// The error with its causes, as a program would print it.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
