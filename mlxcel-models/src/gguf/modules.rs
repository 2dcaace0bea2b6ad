//! The files of sentence-transformers that a file's pooling stands for.

use mlxcel_core::Result;
use serde_json::{Map, Value, json};

use super::{Gguf, architecture};

/// How hidden states become an embedding; none where the file does not say, or pools for scores.
fn pooling(gguf: &Gguf) -> Result<Option<&'static str>> {
    let (metadata, key) = (gguf.metadata(), architecture::key(gguf, "pooling_type")?);
    match metadata.size(&key)? {
        None | Some(0 | 4) => Ok(None),
        Some(1) => Ok(Some("mean")),
        Some(2) => Ok(Some("cls")),
        Some(3) => Ok(Some("lasttoken")),
        Some(other) => {
            let message = format!("pooling of type {other} is not known; none, mean, cls, last and rank are");
            Err(metadata.unsupported(&key, message))
        }
    }
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
