//! The values of small tensors.

use half::{bf16, f16};
use mlxcel_core::{Error, Result};

use super::block::TensorType;
use super::header::{OPERATION, Tensor};
use crate::element::ElementType;

/// The values of a tensor of floats, which is not packed.
pub(super) fn floats<'a>(
    location: &str,
    tensor: &Tensor,
    bytes: &'a [u8],
) -> Result<impl ExactSizeIterator<Item = f32> + 'a> {
    let (width, read): (usize, fn(&[u8]) -> f32) = match tensor.ty {
        TensorType::Plain(ElementType::F32) => {
            (4, |bytes| f32::from_le_bytes(bytes.try_into().unwrap_or_default()))
        }
        TensorType::Plain(ElementType::F16) => {
            (2, |bytes| f16::from_le_bytes(bytes.try_into().unwrap_or_default()).to_f32())
        }
        TensorType::Plain(ElementType::BF16) => {
            (2, |bytes| bf16::from_le_bytes(bytes.try_into().unwrap_or_default()).to_f32())
        }
        _ => {
            let message = "the tensor should be of type F32, F16 or BF16";
            return Err(Error::unsupported(OPERATION, message)
                .with_context("tensor", tensor.name.escape_debug())
                .with_context("path", location));
        }
    };
    Ok(bytes.chunks_exact(width).map(read))
}
