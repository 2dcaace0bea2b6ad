//! Weights that stay packed: a few bits a value, with a scale for each group of them.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::QuantizationMode;

use super::{Array, DType, size, unlist};
use crate::ffi::{self, PackedTensor};

/// A packed weight and how it is packed.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Words of 32 bits (`U32`): `[…, rows, columns · bits / 32]`.
    pub(crate) words: Array,
    /// `[…, rows, columns / group_size]`: floats in the affine mode, else bytes.
    pub(crate) scales: Array,
    /// In the affine mode what is added to each group, like `scales`.
    pub(crate) biases: Option<Array>,
    /// How many values of a row share a scale.
    pub(crate) group_size: usize,
    /// Bits of a value.
    pub(crate) bits: usize,
    /// What a packed value means.
    pub(crate) mode: QuantizationMode,
}

impl Packed {
    /// Packs the rows of a matrix of floats, or of several. Which group sizes and bits there are depends on the mode.
    pub(crate) fn quantize(
        weight: &Array,
        group_size: usize,
        bits: usize,
        mode: QuantizationMode,
    ) -> Result<Self> {
        const OPERATION: &str = "quantize";
        let (group, width) = (size(group_size, OPERATION)?, size(bits, OPERATION)?);
        let parts = ffi::quantize(weight.tensor(), group, width, name(mode)?);
        let mut parts = unlist(&*ffi::check(parts, OPERATION)?, OPERATION)?.into_iter();
        let (Some(words), Some(scales)) = (parts.next(), parts.next()) else {
            return Err(Error::new(ErrorKind::Internal, OPERATION, "MLX gave no scales"));
        };
        Ok(Self { words, scales, biases: parts.next(), group_size, bits, mode })
    }

    /// The values.
    pub(crate) fn dequantize(&self, dtype: DType) -> Result<Array> {
        Array::made(ffi::dequantize(&self.tensors()?, dtype.code()), "dequantize")
    }

    /// `x @ wᵀ` where `transposed` (the weight being `[outputs, inputs]`, as checkpoints have it), else `x @ w`.
    pub(crate) fn multiply(&self, x: &Array, transposed: bool) -> Result<Array> {
        Array::made(ffi::quantized_matmul(x.tensor(), &self.tensors()?, transposed), "quantized matmul")
    }

    /// [`multiply`](Self::multiply) of each row (`[rows, 1, inputs]`) with the matrix, of several, that `indices` (`[rows]`, `U32`)
    /// names; `sorted` where these ascend.
    pub(crate) fn gather_multiply(&self, x: &Array, indices: &Array, sorted: bool) -> Result<Array> {
        let answer = ffi::gather_qmm(x.tensor(), &self.tensors()?, indices.tensor(), true, sorted);
        Array::made(answer, "gather quantized matmul")
    }

    fn tensors(&self) -> Result<PackedTensor<'_>> {
        Ok(PackedTensor {
            words: self.words.tensor(),
            scales: self.scales.tensor(),
            biases: self.biases.as_ref().map(Array::tensor),
            group_size: size(self.group_size, "use a packed weight")?,
            bits: size(self.bits, "use a packed weight")?,
            mode: name(self.mode)?,
        })
    }
}

/// MLX's name for a mode.
fn name(mode: QuantizationMode) -> Result<&'static str> {
    Ok(match mode {
        QuantizationMode::Affine => "affine",
        QuantizationMode::Mxfp4 => "mxfp4",
        QuantizationMode::Mxfp8 => "mxfp8",
        QuantizationMode::Nvfp4 => "nvfp4",
        _ => {
            return Err(Error::unsupported("use a packed weight", "MLX has no such mode")
                .with_context("mode", format_args!("{mode:?}")));
        }
    })
}
