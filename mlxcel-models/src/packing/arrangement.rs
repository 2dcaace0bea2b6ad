//! Parts that files store in another arrangement.

use serde::{Deserialize, Serialize};

use super::{Code, Offset, Packing, Part, Scale};
use crate::element::ElementType;
use crate::gguf::BlockType;

/// How a weight's elements are computed from differently arranged stored tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Derived {
    /// The stored arrangement.
    pub arrangement: Arrangement,
    /// The part of the packed weight that is read from it.
    pub part: Part,
    /// The shape of the part in one stored tensor, innermost dimension last: `[…, rows, width]`.
    pub shape: Vec<usize>,
}

/// The arrangements, one for each published format; `formats/` has a file for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arrangement {
    /// The bytes of the part, in a tensor of another element type or shape.
    #[serde(rename = "bytes")]
    Bytes,
    /// Whole numbers, for floats of the same shape.
    #[serde(rename = "integers")]
    Integers,
    /// Blocks of a GGUF file.
    #[serde(rename = "gguf")]
    Gguf(BlockType),
    /// Numbers shared by several rows or groups.
    #[serde(rename = "grid")]
    Grid {
        /// How many rows share a number.
        rows: usize,
        /// How many groups of the packing share one.
        groups: usize,
        /// Whether the numbers of a row are a column of the tensor.
        transposed: bool,
    },
    /// GPTQ.
    #[serde(rename = "gptq")]
    Gptq(Gptq),
    /// AWQ, in the order of its matrix kernels.
    #[serde(rename = "awq")]
    Awq {
        /// How many groups of the packing share a scale and a zero.
        groups: usize,
    },
    /// compressed-tensors.
    #[serde(rename = "compressed")]
    Compressed(Compressed),
}

/// How GPTQ stores a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gptq {
    /// Bits of a code.
    pub(crate) bits: usize,
    /// How many groups of the packing share a scale and a zero.
    pub(crate) groups: usize,
    /// Whether zeros are stored less one.
    pub(crate) less_one: bool,
    /// Whether columns are sorted by `g_idx`.
    pub(crate) ordered: bool,
}

/// How compressed-tensors stores a module that needs conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Compressed {
    /// Bits of a code.
    pub(crate) bits: usize,
    /// How many rows share a scale and a zero.
    pub(crate) rows: usize,
    /// How many groups of the packing share them.
    pub(crate) groups: usize,
    /// Whether columns are sorted by `weight_g_idx`.
    pub(crate) ordered: bool,
}

const F16: ElementType = ElementType::F16;

impl BlockType {
    /// The packing of this block type.
    pub fn packing(self) -> Packing {
        let bytes = |signed, groups| Scale::Bytes { signed, groups, factor: F16 };
        let minima = |groups| Offset::Bytes { groups, factor: F16 };
        let symmetric = |bits, zero, group| Packing::symmetric(bits, zero, group, F16);
        match self {
            Self::Q4_0 => symmetric(4, 8, 32),
            Self::Q4_1 => Packing::affine(4, 32, F16),
            Self::Q5_0 => symmetric(5, 16, 32),
            Self::Q5_1 => Packing::affine(5, 32, F16),
            Self::Q8_0 => symmetric(8, 128, 32),
            Self::Q2K => Packing { scale: bytes(false, 16), offset: minima(16), ..symmetric(2, 0, 16) },
            Self::Q3K => Packing { scale: bytes(true, 16), ..symmetric(3, 4, 16) },
            Self::Q4K => Packing { scale: bytes(false, 8), offset: minima(8), ..symmetric(4, 0, 32) },
            Self::Q5K => Packing { scale: bytes(false, 8), offset: minima(8), ..symmetric(5, 0, 32) },
            Self::Q6K => Packing { scale: bytes(true, 16), ..symmetric(6, 32, 16) },
            Self::Iq4Nl => Packing { code: Code::Iq4Nl, ..symmetric(4, 0, 32) },
            Self::Iq4Xs => Packing { code: Code::Iq4Nl, scale: bytes(true, 8), ..symmetric(4, 0, 32) },
            Self::Mxfp4 => Packing::MXFP4,
        }
    }
}
