//! How the values of a matrix are packed into few bits: the one description that readers give and engines take.
//!
//! A packed matrix `[rows, columns]` has a *code* of a few bits for each value. Consecutive values of a row are a *group*, which has a
//! scale and perhaps an offset:
//!
//! ```text
//! value = scale(group) · number(code) + offset(group)
//! ```
//!
//! in float32, each operation rounded. [`Packing`] says what codes, scales and offsets are; the tensors that hold them are the
//! weight's [`Part`]s. Files arrange these in many ways; readers (`formats/`) bring all of them to this one, exactly, while a weight is
//! loaded, so that nothing behind them knows of formats.

mod arrangement;
mod codebook;
mod decode;
pub(crate) mod formats;
mod rows;
mod text;

use mlxcel_core::{Error, ErrorKind, Result};

pub use arrangement::{Arrangement, Derived};
pub use decode::decode_row;
pub use formats::compressed::Compressed;
pub use formats::gptq::Gptq;
pub use rows::{PackedRows, Scratch};

pub use crate::gguf::BlockType;

use crate::decoder::WeightRef;
use crate::element::ElementType;

/// How the values of a matrix are packed.
///
/// Its text, such as `u4/64 bf16 + bf16`, is read back by [`str::parse`]: the code and its bits (`u4` an unsigned integer, `u4-8` one less 8,
/// `e2m1`, `e4m3`, `e5m2`, `iq4nl`), the values of a group, the scale (`u8*f16/8` a byte for each group and a float for 8 of them), the
/// offset, and `ordered` where inputs come in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// What a code stands for.
    pub code: Code,
    /// How many consecutive values of a row are a group.
    pub group_size: usize,
    /// What a group's numbers are multiplied with.
    pub scale: Scale,
    /// What is added to them.
    pub offset: Offset,
    /// Whether the columns stand in another order than the inputs of the layer, which [`Part::Order`] gives.
    pub ordered: bool,
}

/// The number that a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The code as an unsigned integer, less `zero`.
    Integer {
        /// What is subtracted.
        zero: u8,
    },
    /// A 4-bit float of the OCP microscaling formats: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and these negated.
    E2M1,
    /// An 8-bit float with 4 exponent bits and no infinities (OCP FP8 E4M3).
    E4M3,
    /// An 8-bit float with 5 exponent bits (OCP FP8 E5M2).
    E5M2,
    /// One of the sixteen integers, denser around zero, of llama.cpp's types `IQ4_NL` and `IQ4_XS`.
    Iq4Nl,
}

/// What the numbers of a group are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// A float for each group: F32, F16 or BF16.
    Float(ElementType),
    /// A power of two for each group, as a biased exponent of 8 bits.
    E8M0,
    /// An 8-bit float for each group (OCP FP8 E4M3).
    E4M3,
    /// A byte for each group times a float for several of them, as in llama.cpp's K-quants.
    Bytes {
        /// Whether the byte is a signed integer.
        signed: bool,
        /// How many consecutive groups of a row share a float.
        groups: usize,
        /// The type of that float.
        factor: ElementType,
    },
}

/// What is added to the scaled numbers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offset {
    /// Nothing.
    None,
    /// A float for each group.
    Float(ElementType),
    /// An unsigned byte for each group times the group's scale, which is subtracted: the code that stands for zero, as in GPTQ and AWQ.
    Zeros,
    /// An unsigned byte for each group times a float for several of them, which is subtracted: the minima of llama.cpp's K-quants.
    Bytes {
        /// How many consecutive groups of a row share a float.
        groups: usize,
        /// The type of that float.
        factor: ElementType,
    },
}

/// A tensor of a packed weight; `[…, rows, width]` but for [`Order`](Self::Order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `[…, rows, columns · bits / 32]` U32: the codes of a row as a stream of bits, little-endian, the first code in the lowest.
    Codes,
    /// `[…, rows, groups]`: floats, or bytes as U8 or I8.
    Scales,
    /// `[…, rows, groups / n]`: the floats of scales that are bytes.
    ScaleFactors,
    /// `[…, rows, groups]`: floats, or bytes as U8.
    Offsets,
    /// `[…, rows, groups / n]`: the floats of offsets that are bytes.
    OffsetFactors,
    /// `[columns]` I32: column `j` belongs to input `order[j]` of the layer.
    Order,
}

impl Part {
    /// What it is called where weights are printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Codes => "codes",
            Self::Scales => "scales",
            Self::ScaleFactors => "scale factors",
            Self::Offsets => "offsets",
            Self::OffsetFactors => "offset factors",
            Self::Order => "order",
        }
    }
}

impl Packing {
    /// `scale · q + bias` with unsigned integers, as `mx.quantize` packs in its affine mode; floats of type `element`.
    pub const fn affine(bits: usize, group_size: usize, element: ElementType) -> Self {
        let offset = Offset::Float(element);
        Self { offset, ..Self::symmetric(bits, 0, group_size, element) }
    }

    /// `scale · (q - zero)` with unsigned integers and floats of type `element`.
    pub const fn symmetric(bits: usize, zero: u8, group_size: usize, element: ElementType) -> Self {
        let (code, scale) = (Code::Integer { zero }, Scale::Float(element));
        Self { bits, code, group_size, scale, offset: Offset::None, ordered: false }
    }

    /// OCP microscaling with 4-bit floats: groups of 32.
    pub const MXFP4: Self = Self {
        bits: 4,
        code: Code::E2M1,
        group_size: 32,
        scale: Scale::E8M0,
        offset: Offset::None,
        ordered: false,
    };

    /// OCP microscaling with 8-bit floats: groups of 32.
    pub const MXFP8: Self = Self { bits: 8, code: Code::E4M3, ..Self::MXFP4 };

    /// 4-bit floats in groups of 16, each with an 8-bit float as scale.
    pub const NVFP4: Self = Self { group_size: 16, scale: Scale::E4M3, ..Self::MXFP4 };

    /// The parts that a weight packed like this has, in the order in which programs take them.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let scale_factors = matches!(self.scale, Scale::Bytes { .. });
        let offsets = self.offset != Offset::None;
        let offset_factors = matches!(self.offset, Offset::Bytes { .. });
        [
            (Part::Codes, true),
            (Part::Scales, true),
            (Part::ScaleFactors, scale_factors),
            (Part::Offsets, offsets),
            (Part::OffsetFactors, offset_factors),
            (Part::Order, self.ordered),
        ]
        .into_iter()
        .filter_map(|(part, there)| there.then_some(part))
    }

    /// The type of the elements of a part.
    pub fn element(&self, part: Part) -> ElementType {
        match (part, self.scale, self.offset) {
            (Part::Codes, ..) => ElementType::U32,
            (Part::Scales, Scale::Float(element), _)
            | (Part::ScaleFactors, Scale::Bytes { factor: element, .. }, _)
            | (Part::Offsets, _, Offset::Float(element))
            | (Part::OffsetFactors, _, Offset::Bytes { factor: element, .. }) => element,
            (Part::Scales, Scale::Bytes { signed: true, .. }, _) => ElementType::I8,
            (Part::Order, ..) => ElementType::I32,
            _ => ElementType::U8,
        }
    }

    /// The elements of a part that belong to a row of `columns` values; of [`Part::Order`] those that all rows share.
    pub fn width(&self, part: Part, columns: usize) -> usize {
        let groups = columns / self.group_size.max(1);
        match (part, self.scale, self.offset) {
            (Part::Codes, ..) => columns.saturating_mul(self.bits) / 32,
            (Part::ScaleFactors, Scale::Bytes { groups: shared, .. }, _)
            | (Part::OffsetFactors, _, Offset::Bytes { groups: shared, .. }) => groups / shared.max(1),
            (Part::Order, ..) => columns,
            _ => groups,
        }
    }

    /// The bits that a value takes, its share of scales and offsets included.
    pub fn bits_per_value(&self) -> f64 {
        let rows = self.parts().filter(|part| *part != Part::Order);
        // A row of a length that all parts divide.
        let columns = self.group_size * 32 * 16;
        let bits = rows.map(|part| self.width(part, columns) * self.element(part).bits()).sum::<usize>();
        bits as f64 / columns as f64
    }

    /// The type that the values have when they are not packed: that of the floats among scales, or `BF16` where there are none, as in MLX.
    pub fn value_type(&self) -> ElementType {
        match self.scale {
            Scale::Float(element) | Scale::Bytes { factor: element, .. } => element,
            Scale::E8M0 | Scale::E4M3 => ElementType::BF16,
        }
    }

    /// Refuses what is no packing, and rows of `columns` values that cannot be packed like this.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], naming the packing.
    pub fn check(&self, columns: usize) -> Result<()> {
        let float = |element: ElementType| element.is_dense_float();
        let (code_fits, groups) = (self.code_fits(), columns.checked_div(self.group_size));
        let scale_fits = match self.scale {
            Scale::Float(element) => float(element),
            Scale::Bytes { groups: shared, factor, .. } => {
                float(factor) && groups.is_some_and(|groups| shared > 0 && groups.is_multiple_of(shared))
            }
            Scale::E8M0 | Scale::E4M3 => true,
        };
        let offset_fits = match self.offset {
            Offset::None | Offset::Zeros => true,
            Offset::Float(element) => float(element),
            Offset::Bytes { groups: shared, factor } => {
                float(factor) && groups.is_some_and(|groups| shared > 0 && groups.is_multiple_of(shared))
            }
        };
        let whole_words = columns.checked_mul(self.bits).is_some_and(|bits| bits.is_multiple_of(32));
        let whole_groups = self.group_size > 0 && columns.is_multiple_of(self.group_size);
        if code_fits && scale_fits && offset_fits && whole_words && whole_groups {
            return Ok(());
        }
        let message = format!("rows of {columns} values cannot be packed as {self}");
        Err(Error::new(ErrorKind::Unsupported, "read packing", message).with_context("packing", self))
    }

    fn code_fits(&self) -> bool {
        match self.code {
            Code::Integer { .. } => [2, 3, 4, 5, 6, 8].contains(&self.bits),
            Code::E2M1 | Code::Iq4Nl => self.bits == 4,
            Code::E4M3 | Code::E5M2 => self.bits == 8,
        }
    }
}

/// A packing and the tensors that hold what it says, of a weight whose own tensor holds the codes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    /// How the values are packed.
    pub packing: Packing,
    /// The parts behind the codes, in the order of [`Packing::parts`].
    pub parts: Vec<WeightRef>,
}

impl Packed {
    /// A packing with its parts behind the codes.
    pub fn new(packing: Packing, parts: impl Into<Vec<WeightRef>>) -> Self {
        Self { packing, parts: parts.into() }
    }

    /// The parts behind the codes, each with what it is.
    pub fn named(&self) -> impl Iterator<Item = (Part, &WeightRef)> {
        self.packing.parts().skip(1).zip(&self.parts)
    }

    /// Changes each part that has rows of its own.
    pub(crate) fn with_rows(&mut self, change: impl Fn(WeightRef) -> WeightRef) {
        for (part, weight) in self.packing.parts().skip(1).zip(&mut self.parts) {
            if part != Part::Order {
                *weight = change(weight.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q4_K: Packing = Packing {
        bits: 4,
        code: Code::Integer { zero: 0 },
        group_size: 32,
        scale: Scale::Bytes { signed: false, groups: 8, factor: ElementType::F16 },
        offset: Offset::Bytes { groups: 8, factor: ElementType::F16 },
        ordered: false,
    };

    #[test]
    fn parts_have_types_and_widths() {
        let told = |packing: Packing| {
            packing
                .parts()
                .map(|part| (part, packing.element(part), packing.width(part, 512)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            told(Q4_K),
            [
                (Part::Codes, ElementType::U32, 64),
                (Part::Scales, ElementType::U8, 16),
                (Part::ScaleFactors, ElementType::F16, 2),
                (Part::Offsets, ElementType::U8, 16),
                (Part::OffsetFactors, ElementType::F16, 2),
            ]
        );
        assert_eq!(
            told(Packing { ordered: true, ..Packing::MXFP4 }),
            [
                (Part::Codes, ElementType::U32, 64),
                (Part::Scales, ElementType::U8, 16),
                (Part::Order, ElementType::I32, 512)
            ]
        );
        assert_eq!(Q4_K.bits_per_value(), 4.625);
        assert_eq!(Packing::affine(4, 64, ElementType::BF16).bits_per_value(), 4.5);
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let affine = Packing::affine(3, 32, ElementType::F16);
        affine.check(96).unwrap();
        for (packing, columns) in [
            (affine, 48),
            (Packing { bits: 7, ..affine }, 96),
            (Packing { group_size: 0, ..affine }, 96),
            (Packing { code: Code::E2M1, ..affine }, 96),
            (Packing { scale: Scale::Float(ElementType::U8), ..affine }, 96),
            (Q4_K, 128),
        ] {
            let error = packing.check(columns).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.context("packing"), Some(&*packing.to_string()));
        }
    }
}
