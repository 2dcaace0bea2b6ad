//! Weights that stay packed: a few bits per value, with a scale per group.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::Packing;
use mlxcel_models::packing::{Code, Offset, Scale};

use super::{Array, DType, size, unlist};
use crate::ffi::{self, PackedTensor};

/// A packed weight and how it is packed.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Words of 32 bits (`U32`): `[…, rows, columns · bits / 32]`.
    pub(crate) words: Array,
    /// `[…, rows, columns / group_size]`: floats in the affine mode, otherwise bytes.
    pub(crate) scales: Array,
    /// In the affine mode the offset of each group, like `scales`.
    pub(crate) biases: Option<Array>,
    /// The input of each column (`[columns]`, `I32`), if columns are reordered.
    pub(crate) order: Option<Array>,
    /// Values per scale.
    pub(crate) group_size: usize,
    /// Bits per value.
    pub(crate) bits: usize,
    /// The meaning of packed values.
    pub(crate) mode: Mode,
}

impl Packed {
    /// Packs the rows of a float matrix, or of several. The supported group sizes and bits depend on the
    /// mode.
    pub(crate) fn quantize(weight: &Array, group_size: usize, bits: usize, mode: Mode) -> Result<Self> {
        const OPERATION: &str = "quantize";
        let (group, width) = (size(group_size, OPERATION)?, size(bits, OPERATION)?);
        let parts = ffi::quantize(weight.tensor(), group, width, mode.name());
        let mut parts = unlist(&*ffi::check(parts, OPERATION)?, OPERATION)?.into_iter();
        let (Some(words), Some(scales)) = (parts.next(), parts.next()) else {
            return Err(Error::new(ErrorKind::Internal, OPERATION, "MLX returned no scales"));
        };
        Ok(Self { words, scales, biases: parts.next(), order: None, group_size, bits, mode })
    }

    /// The same packing with other words, and scales and biases as `of` makes them.
    pub(crate) fn with(&self, words: Array, of: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        let biases = self.biases.as_ref().map(&of).transpose()?;
        Ok(Self { words, scales: of(&self.scales)?, biases, order: self.order.clone(), ..*self })
    }

    /// The values.
    pub(crate) fn dequantize(&self, dtype: DType) -> Result<Array> {
        let values = Array::made(ffi::dequantize(&self.tensors()?, dtype.code()), "dequantize")?;
        self.by_input(values)
    }

    /// `x @ wᵀ` if `transposed` (the weight is `[outputs, inputs]`, as in checkpoints), otherwise `x @ w`.
    pub(crate) fn multiply(&self, x: &Array, transposed: bool) -> Result<Array> {
        let product = |x: &Array| {
            let answer = ffi::quantized_matmul(x.tensor(), &self.tensors()?, transposed);
            Array::made(answer, "quantized matmul")
        };
        if transposed { product(&self.by_column(x)?) } else { self.by_input(product(x)?) }
    }

    /// Permutes inputs, along the last axis of `x`, to the order of the columns.
    pub(crate) fn by_column(&self, x: &Array) -> Result<Array> {
        self.order.as_ref().map_or_else(|| Ok(x.clone()), |order| x.take(order, -1))
    }

    /// Permutes columns, along the last axis of `values`, to the order of the inputs.
    fn by_input(&self, values: Array) -> Result<Array> {
        match &self.order {
            Some(order) => values.take(&order.argsort(-1)?, -1),
            None => Ok(values),
        }
    }

    /// [`multiply`](Self::multiply) of each row (`[rows, 1, inputs]`) with the matrix selected by `indices`
    /// (`[rows]`, `U32`); `sorted` if these ascend.
    pub(crate) fn gather_multiply(&self, x: &Array, indices: &Array, sorted: bool) -> Result<Array> {
        let x = self.by_column(x)?;
        let answer = ffi::gather_qmm(x.tensor(), &self.tensors()?, indices.tensor(), true, sorted);
        Array::made(answer, "gather quantized matmul")
    }

    /// The parts as the bridge takes them.
    pub(crate) fn tensors(&self) -> Result<PackedTensor<'_>> {
        Ok(PackedTensor {
            words: self.words.tensor(),
            scales: self.scales.tensor(),
            biases: self.biases.as_ref().map(Array::tensor),
            group_size: size(self.group_size, "use a packed weight")?,
            bits: size(self.bits, "use a packed weight")?,
            mode: self.mode.name(),
        })
    }
}

/// A mode of MLX: how its kernels interpret packed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// `scale · q + bias`: unsigned integers with floats per group.
    Affine,
    /// 4-bit floats (E2M1) in groups of 32 with a power of two as scale.
    Mxfp4,
    /// 8-bit floats (E4M3) in groups of 32 with a power of two as scale.
    Mxfp8,
    /// 4-bit floats (E2M1) in groups of 16 with an 8-bit float as scale.
    Nvfp4,
}

impl Mode {
    /// The mode in which MLX's kernels compute with `packing`, if any.
    pub(crate) fn of(packing: &Packing) -> Option<Self> {
        let affine = matches!((packing.code, packing.scale, packing.offset),
            (Code::Integer { zero: 0 }, Scale::Float(scale), Offset::Float(offset)) if scale == offset);
        match *packing {
            Packing::MXFP4 => Some(Self::Mxfp4),
            Packing::MXFP8 => Some(Self::Mxfp8),
            Packing::NVFP4 => Some(Self::Nvfp4),
            Packing { group_size: 32 | 64 | 128, ordered: false, .. } if affine => Some(Self::Affine),
            _ => None,
        }
    }

    /// MLX's name for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }
}
