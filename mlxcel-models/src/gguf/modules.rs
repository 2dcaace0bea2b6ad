//! The files of sentence-transformers that a file's pooling stands for.

use mlxcel_core::Result;
use serde_json::{Map, Value, json};

use super::{Gguf, architecture};

/// How hidden states become an embedding; none where the file does not say, or scores instead.
fn pooling(gguf: &Gguf) -> Result<Option<&'static str>> {
    gguf.metadata().pooling(&architecture::key(gguf, "pooling_type")?)
}

/// `modules.json`: pooling, and the normalization that llama.cpp does unless it is asked not to.
pub(super) fn modules(gguf: &Gguf) -> Result<Option<Value>> {
    let module = |kind: &str, path: &str| json!({"type": kind, "path": path});
    let modules = || {
        json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")])
    };
    Ok(pooling(gguf)?.map(|_| modules()))
}

/// `1_Pooling/config.json`.
pub(super) fn pooling_config(gguf: &Gguf) -> Result<Option<Map<String, Value>>> {
    let Some(mode) = pooling(gguf)? else { return Ok(None) };
    let key = architecture::key(gguf, "embedding_length")?;
    let width = gguf.metadata().size(&key)?.ok_or_else(|| gguf.metadata().absent(&key))?;
    let fields = [("embedding_dimension", Value::from(width)), ("pooling_mode", Value::from(mode))];
    Ok(Some(fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()))
}
