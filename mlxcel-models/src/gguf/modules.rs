//! The files of sentence-transformers that a file's pooling and dense layers stand for.

use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use super::header::OPERATION;
use super::{Gguf, architecture};

const POOLING: &str = "pooling_type";
/// The dense layers behind the pooling, in order: what names of tensor and keys begin with, and the folder of
/// the module.
const DENSE: [(&str, &str); 2] = [("dense_2", "2_Dense"), ("dense_3", "3_Dense")];

/// How hidden states become an embedding; none where the file does not say, or scores instead.
fn pooling(gguf: &Gguf) -> Result<Option<&'static str>> {
    gguf.metadata().pooling(&architecture::key(gguf, POOLING)?)
}

/// Whether the file has dense layers: all or none.
fn has_dense(gguf: &Gguf) -> Result<bool> {
    let tensors = DENSE.map(|(name, _)| format!("{name}.weight"));
    let missing: Vec<_> = tensors.iter().filter(|name| gguf.tensor(name).is_none()).collect();
    match missing[..] {
        [] => Ok(true),
        [name] => {
            let message =
                "the file has one of two dense layers and lacks this tensor; convert the model again";
            Err(Error::new(ErrorKind::Corrupt, OPERATION, message)
                .with_context("tensor", name)
                .with_context("path", gguf.metadata().location))
        }
        _ => Ok(false),
    }
}

/// `modules.json`: pooling, dense layers, and the normalization that llama.cpp does unless it is asked not
/// to.
pub(super) fn modules(gguf: &Gguf) -> Result<Option<Value>> {
    let has_dense = has_dense(gguf)?;
    if pooling(gguf)?.is_none() {
        if has_dense {
            let key = architecture::key(gguf, POOLING)?;
            let message = "dense layers need a way of pooling, which the file does not say".to_owned();
            return Err(gguf.metadata().unsupported(&key, message));
        }
        return Ok(None);
    }
    let mut modules = vec![("Transformer", ""), ("Pooling", "1_Pooling")];
    if has_dense {
        modules.extend(DENSE.map(|(_, folder)| ("Dense", folder)));
    }
    modules.push(("Normalize", "Normalize"));
    Ok(Some(modules.into_iter().map(|(kind, path)| json!({"type": kind, "path": path})).collect()))
}

/// `1_Pooling/config.json`.
pub(super) fn pooling_config(gguf: &Gguf) -> Result<Option<Map<String, Value>>> {
    let Some(mode) = pooling(gguf)? else { return Ok(None) };
    let key = architecture::key(gguf, "embedding_length")?;
    let width = gguf.metadata().size(&key)?.ok_or_else(|| gguf.metadata().absent(&key))?;
    let fields = [("embedding_dimension", Value::from(width)), ("pooling_mode", Value::from(mode))];
    Ok(Some(fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()))
}

/// `2_Dense/config.json` and `3_Dense/config.json`; the weights are tensors of the model.
pub(super) fn dense_config(gguf: &Gguf, folder: &str) -> Result<Option<Map<String, Value>>> {
    let Some((name, _)) = DENSE.iter().find(|(_, known)| *known == folder) else { return Ok(None) };
    let Some((tensor, _)) = gguf.tensor(&format!("{name}.weight")) else { return Ok(None) };
    // Where the keys are missing, the tensor says it all.
    let size = |ending: &str, dimension: usize| -> Result<Value> {
        let key = architecture::key(gguf, &format!("{name}_feat_{ending}"))?;
        Ok(gguf.metadata().size(&key)?.or(tensor.shape.get(dimension).copied()).into())
    };
    let fields = [
        ("in_features", size("in", 1)?),
        ("out_features", size("out", 0)?),
        ("bias", false.into()),
        ("activation_function", "torch.nn.Identity".into()),
    ];
    Ok(Some(fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()))
}

#[cfg(test)]
mod tests;
