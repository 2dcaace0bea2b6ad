//! LoRA adapters in GGUF files, as `llama.cpp`'s converter writes them.
//!
//! The matrices beside tensor `NAME` are `NAME.lora_a` (`[rank, inputs]`) and `NAME.lora_b` (`[outputs,
//! rank]`), whose rows are in the converter's order ([`Rows`](super::Rows)). The scale is
//! `adapter.lora.alpha` by the rank.

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use super::architecture::{self, Architecture};
use super::block::TensorType;
use super::header::OPERATION;
use super::{Gguf, Part};
use crate::bytes::FileBytes;
use crate::safetensors::Entry;

const TYPE: &str = "general.type";
const KIND: &str = "adapter.type";
const ALPHA: &str = "adapter.lora.alpha";
/// All keys of adapters begin with this.
const KEYS: &str = "adapter.";
/// Keys of adapters that are read, or change nothing: what the adapter is good for.
const KNOWN: [&str; 4] = [KIND, ALPHA, "adapter.lora.task_name", "adapter.lora.prompt_prefix"];

/// An adapter in a GGUF file.
pub(crate) struct Lora {
    /// The name of the architecture of its base model.
    pub(crate) architecture: &'static str,
    /// The scale is this by the rank; none for a scale of one.
    pub(crate) alpha: Option<f64>,
    /// What errors call the file.
    pub(crate) location: String,
    pub(crate) bytes: Arc<FileBytes>,
    /// The tensors, each with the module of the base model that it changes and the number of the matrix, if
    /// it is one of LoRA's.
    pub(crate) tensors: Vec<(Entry, Option<(String, usize)>)>,
}

impl Lora {
    /// The adapter in `gguf`.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a file that is no adapter;
    /// [`Unsupported`](ErrorKind::Unsupported) for other kinds of adapters, unknown settings, packed
    /// matrices, and several files; [`Corrupt`](ErrorKind::Corrupt) for damaged metadata.
    pub(crate) fn of(gguf: Gguf) -> Result<Self> {
        let metadata = gguf.metadata();
        if metadata.text(TYPE)? != Some("adapter") {
            let message = "this GGUF file is a model; pass an adapter, whose `general.type` is `adapter`";
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                .with_context("path", metadata.location));
        }
        let kind = metadata.text(KIND)?.ok_or_else(|| metadata.absent(KIND))?;
        if kind != "lora" {
            let message =
                format!("adapters of the type '{}' are not supported, lora is", kind.escape_debug());
            return Err(metadata.unsupported(KIND, message));
        }
        let mut unknown: Vec<&str> = metadata.entries.keys().map(String::as_str).collect();
        unknown.retain(|key| key.starts_with(KEYS) && !KNOWN.contains(key));
        if let Some(key) = unknown.into_iter().min() {
            return Err(metadata.unsupported(key, "this setting of adapters is not supported".to_owned()));
        }
        let architecture = architecture::find(&gguf)?;
        let alpha = metadata.number(ALPHA)?.filter(|&alpha| alpha != 0.0);
        let location = metadata.location.to_owned();
        let [part] = <[Part; 1]>::try_from(gguf.parts).map_err(|_| {
            let message = "an adapter in several GGUF files is not supported; merge them by llama-gguf-split";
            Error::unsupported(OPERATION, message).with_context("path", &location)
        })?;
        let tensors = part.header.tensors.into_iter().map(|tensor| {
            let TensorType::Plain(element) = tensor.ty else {
                let message = "matrices of adapters are supported in F32, F16 and BF16; convert the adapter with \
                               `--outtype f16`";
                return Err(Error::unsupported(OPERATION, message)
                    .with_context("tensor", tensor.name.escape_debug())
                    .with_context("path", &location));
            };
            let module = module(architecture, &tensor.name);
            Ok((Entry { name: tensor.name, element, shape: tensor.shape, range: tensor.range }, module))
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        Ok(Self { architecture: architecture.name, alpha, location, bytes: part.bytes, tensors })
    }
}

/// The module of the base model whose matrix the tensor `name` of an adapter is, and the number of the
/// matrix.
fn module(architecture: &Architecture, name: &str) -> Option<(String, usize)> {
    let mut matrices = [".lora_a", ".lora_b"].into_iter().enumerate();
    let (matrix, base) = matrices.find_map(|(matrix, suffix)| Some((matrix, name.strip_suffix(suffix)?)))?;
    let (target, _) = architecture::target(architecture, usize::MAX, base).ok().flatten()?;
    Some((target.strip_suffix(".weight")?.to_owned(), matrix))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::draft::{Draft, Kind};
    use super::super::place::Place;
    use super::*;

    fn adapter() -> Draft {
        let mut draft = Draft::new();
        draft.text("general.architecture", "llama").text(TYPE, "adapter").text(KIND, "lora");
        draft
    }

    fn read(draft: &Draft) -> Result<Lora> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter.gguf");
        fs::write(&path, draft.write()).unwrap();
        Lora::of(Gguf::open(Place::at(&path)?.unwrap())?)
    }

    #[test]
    fn tensors_are_matrices_beside_the_modules_of_the_base_model() {
        let mut draft = adapter();
        draft.number(ALPHA, Kind::F32, 6.0).text("adapter.lora.task_name", "poems");
        draft.tensor("blk.1.attn_q.weight.lora_a", 0, &[2, 4], &[0; 32]);
        draft.tensor("output.weight.lora_b", 1, &[8, 2], &[0; 32]);
        draft.tensor("blk.1.attn_norm.weight", 0, &[4], &[0; 16]);
        let lora = read(&draft).unwrap();
        assert_eq!((lora.architecture, lora.alpha), ("llama", Some(6.0)));
        let modules = lora.tensors.iter().map(|(_, module)| module.as_ref());
        let modules: Vec<_> = modules.map(|module| module.map(|(name, matrix)| (&**name, *matrix))).collect();
        assert_eq!(modules, [Some(("model.layers.1.self_attn.q_proj", 0)), Some(("lm_head", 1)), None]);
        // Without an alpha, and with one of zero, the scale is one.
        assert_eq!(read(&adapter()).unwrap().alpha, None);
        assert_eq!(read(adapter().number(ALPHA, Kind::F32, 0.0)).unwrap().alpha, None);
    }

    #[test]
    fn other_kinds_of_files_and_adapters_are_refused_by_name() {
        let refused = |draft: &Draft| {
            let error = read(draft).map(drop).unwrap_err();
            (error.kind(), error.context("key").or(error.context("tensor")).map(str::to_owned))
        };
        let mut model = Draft::new();
        model.text("general.architecture", "llama");
        assert_eq!(refused(&model).0, ErrorKind::InvalidInput);
        let mut draft = Draft::new();
        draft.text("general.architecture", "llama").text(TYPE, "adapter");
        assert_eq!(refused(&draft), (ErrorKind::Corrupt, Some(KIND.to_owned())));
        assert_eq!(
            refused(draft.text(KIND, "control_vector")),
            (ErrorKind::Unsupported, Some(KIND.to_owned()))
        );
        let tokens = "adapter.alora.invocation_tokens";
        let activated = refused(adapter().numbers(tokens, Kind::U32, &[1.0]));
        assert_eq!(activated, (ErrorKind::Unsupported, Some(tokens.to_owned())));
        assert_eq!(refused(adapter().text(ALPHA, "6")), (ErrorKind::Corrupt, Some(ALPHA.to_owned())));
        let packed = "blk.0.attn_q.weight.lora_a";
        let found = refused(adapter().tensor(packed, 8, &[2, 32], &[0; 68]));
        assert_eq!(found, (ErrorKind::Unsupported, Some(packed.to_owned())));
    }
}
