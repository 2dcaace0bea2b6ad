//! File formats of packed weights, one per file, and the detection of a checkpoint's format.

mod auto_round;
pub(in crate::read) mod awq;
pub(in crate::read) mod compressed;
mod fp8;
pub(in crate::read) mod gguf;
pub(in crate::read) mod gptq;
pub(in crate::read) mod grid;
pub(crate) mod integers;
mod mlx;
mod modelopt;
mod module;
pub(crate) mod mxfp4;
mod stream;

pub(crate) use mlx::refuse_quantized_activations;
pub use mlx::{Mode, Scheme};

use mlxcel_core::{Error, ErrorKind, Result};

use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::WeightRef;

const OPERATION: &str = "describe decoder";

/// The name under which transformers keeps the settings of a quantized checkpoint.
const QUANTIZATION_CONFIG: &str = "quantization_config";

/// The matrix of `shape`, or several along a dimension in front, of the module called `module`: dense, or
/// packed in the form that the settings name.
pub(crate) fn matrix(checkpoint: &Checkpoint, module: &str, shape: &[usize]) -> Result<WeightRef> {
    let weight = format!("{module}.weight");
    if let Some(block) = checkpoint.blocks(&weight) {
        return gguf::matrix(checkpoint, &weight, shape, block);
    }
    let Some(method) = method(checkpoint.config())? else { return mlx::matrix(checkpoint, module, shape) };
    let settings = checkpoint.config().object(QUANTIZATION_CONFIG)?.unwrap_or(checkpoint.config());
    match method {
        "gptq" => gptq::matrix(checkpoint, settings, module, shape),
        "auto-round" | "intel/auto-round" => auto_round::matrix(checkpoint, settings, module, shape),
        "awq" => awq::matrix(checkpoint, settings, module, shape),
        "compressed-tensors" => compressed::matrix(checkpoint, settings, module, shape),
        "fp8" | "fbgemm_fp8" | "mxfp8" => fp8::matrix(checkpoint, settings, module, shape),
        "modelopt" => modelopt::matrix(checkpoint, settings, module, shape),
        // Experts alone are packed, which are described as stacks.
        "mxfp4" => dense(checkpoint, &format!("{module}.weight"), shape),
        _ => {
            let message = format!(
                "weights quantized by '{}' are not supported; use a checkpoint that mlx-lm, GPTQ, AWQ, AutoRound, \
                 llm-compressor or ModelOpt quantized, or one in float16, bfloat16 or float32",
                method.escape_debug()
            );
            Err(settings.unsupported("quant_method", message))
        }
    }
}

/// Whether there is a matrix of the module called `module`, whatever its form.
pub(crate) fn has_matrix(checkpoint: &Checkpoint, module: &str) -> bool {
    ["weight", "qweight", "weight_packed"]
        .into_iter()
        .any(|suffix| checkpoint.has(&format!("{module}.{suffix}")))
}

/// The method that quantized the checkpoint, where it is another than MLX's.
fn method(config: Fields<'_>) -> Result<Option<&str>> {
    for key in mlx::KEYS {
        let Some(settings) = config.object(key)? else { continue };
        if let Some(method) = settings.text("quant_method")? {
            return Ok(Some(method));
        }
        // The oldest settings of this one do not name it.
        let bitsandbytes = ["load_in_4bit", "load_in_8bit"].into_iter().any(|key| settings.mentions(key));
        return Ok(bitsandbytes.then_some("bitsandbytes"));
    }
    Ok(None)
}

/// The tensor `name`, which the settings say is dense and of `shape`.
pub(crate) fn dense(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<WeightRef> {
    let (view, location) = checkpoint.located(name)?;
    let locate = |error: Error| error.with_context("tensor", name).with_context("path", location);
    if let Some(block) = checkpoint.blocks(name) {
        let message =
            format!("the tensor is packed as {}; F32, F16 or BF16 are supported here", block.name());
        return Err(locate(Error::unsupported(OPERATION, message)));
    }
    if view.shape != shape {
        let message = format!("the tensor is {:?} and config.json makes it {shape:?}", view.shape);
        return Err(locate(Error::new(ErrorKind::Corrupt, OPERATION, message))
            .with_context("expected", format!("{shape:?}")));
    }
    if !view.element_type.is_dense_float() {
        let message = format!("its elements are {}; F32, F16 or BF16 are supported here", view.element_type);
        return Err(locate(Error::unsupported(OPERATION, message)));
    }
    Ok(WeightRef::new(name, view.element_type, shape))
}
