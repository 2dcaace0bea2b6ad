//! From tensor names to the roles of a [`Decoder`](crate::Decoder), with every shape checked against the settings.

use mlxcel_core::{Error, ErrorKind, Result};

use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Activation, Linear, Norm, WeightRef};
use crate::element::ElementType;

const OPERATION: &str = "describe decoder";

/// The tensor `name`, which the settings say is dense and of `shape`.
pub(super) fn dense(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<WeightRef> {
    let (view, location) = checkpoint.located(name)?;
    let locate = |error: Error| error.with_context("tensor", name).with_context("path", location);
    if view.shape != shape {
        let message = format!("the tensor is {:?} and config.json makes it {shape:?}", view.shape);
        return Err(locate(Error::new(ErrorKind::Corrupt, OPERATION, message)));
    }
    if !view.element_type.is_dense_float() {
        let message = format!("its elements are {}; F32, F16 or BF16 are supported here", view.element_type);
        return Err(locate(Error::unsupported(OPERATION, message)));
    }
    Ok(WeightRef::new(name, view.element_type, shape))
}

/// The projection whose tensors are `{name}.weight` and, if `bias`, `{name}.bias`.
pub(super) fn linear(
    checkpoint: &Checkpoint,
    name: &str,
    outputs: usize,
    inputs: usize,
    bias: bool,
) -> Result<Linear> {
    let weight = dense(checkpoint, &format!("{name}.weight"), &[outputs, inputs])?;
    let bias = if bias { Some(dense(checkpoint, &format!("{name}.bias"), &[outputs])?) } else { None };
    Ok(Linear { weight, bias })
}

/// The norm whose tensor is `{name}.weight`.
pub(super) fn norm(checkpoint: &Checkpoint, name: &str, size: usize, epsilon: f32) -> Result<Norm> {
    Ok(Norm { weight: dense(checkpoint, &format!("{name}.weight"), &[size])?, epsilon })
}

/// The function that a field such as `hidden_act` names, by the names of transformers' `ACT2FN`.
pub(super) fn activation(config: Fields<'_>, key: &str, default: Activation) -> Result<Activation> {
    Ok(match config.text(key)? {
        None => default,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu") => Activation::Gelu,
        Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
        Some("relu") => Activation::Relu,
        Some(other) => {
            let message = format!(
                "the activation '{}' is not known; silu, gelu, gelu_pytorch_tanh and relu are",
                other.escape_debug()
            );
            return Err(config.unsupported(key, message));
        }
    })
}

/// The type of activations: `dtype`, or `torch_dtype` in the older layout, else that of the weight `fallback`.
pub(super) fn activation_type(config: Fields<'_>, fallback: &WeightRef) -> Result<ElementType> {
    let key = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    Ok(match config.text(key)? {
        None => fallback.element,
        Some("bfloat16") => ElementType::BF16,
        Some("float16") => ElementType::F16,
        Some("float32") => ElementType::F32,
        Some(other) => {
            let message = format!(
                "activations of type '{}' are not supported; bfloat16, float16 and float32 are",
                other.escape_debug()
            );
            return Err(config.unsupported(key, message));
        }
    })
}
