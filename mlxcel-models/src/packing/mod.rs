//! Packings of quantized matrices: one description for all formats, which readers produce and engines
//! consume.
//!
//! A packed matrix `[rows, columns]` has a *code* of a few bits for each value. A *group* of consecutive
//! values of a row shares a scale and possibly an offset:
//!
//! ```text
//! value = scale(group) · number(code) + offset(group)
//! ```
//!
//! in float32, rounding after each operation. [`Packing`] describes codes, scales and offsets; the tensors
//! that contain them are the weight's [`Part`]s. Files arrange these in many ways, which [`Arrangement`]
//! names. [`read`](crate::read) converts all of them exactly to this description at load, so that no other
//! code depends on the file format.

mod arrangement;
mod codebook;
mod decode;
mod text;

use mlxcel_core::{Error, ErrorKind, Result};

pub use arrangement::{Arrangement, Compressed, Derived, Gptq};
pub(crate) use codebook::e4m3;
pub use decode::decode_row;

use crate::element::ElementType;
pub use crate::gguf::BlockType;

/// The packing of a matrix.
///
/// Its text form, such as `u4/64 bf16 + bf16`, is parsed by [`str::parse`]. It consists of the code with its
/// bits (`u4` an unsigned integer, `u4-8` one minus 8, `e2m1`, `e4m3`, `e5m2`, `iq4nl`), the group size, the
/// scale (`u8*f16/8` is a byte per group times a float per 8 groups), the offset, and `ordered` if inputs are
/// permuted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// The bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// What a code represents.
    pub code: Code,
    /// The number of consecutive values of a row in a group.
    pub group_size: usize,
    /// The scale of a group.
    pub scale: Scale,
    /// The offset of a group.
    pub offset: Offset,
    /// Whether the columns are a permutation of the layer's inputs, given by [`Part::Order`].
    pub ordered: bool,
}

/// The number that a code represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The code as an unsigned integer, minus `zero`.
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
    /// One of sixteen integers, denser around zero, of llama.cpp's types `IQ4_NL` and `IQ4_XS`.
    Iq4Nl,
}

/// The scale of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// A float per group: F32, F16 or BF16.
    Float(ElementType),
    /// A power of two per group, as a biased 8-bit exponent.
    E8M0,
    /// An 8-bit float per group (OCP FP8 E4M3).
    E4M3,
    /// A byte per group times a float per several groups, as in llama.cpp's K-quants.
    Bytes {
        /// Whether the byte is a signed integer.
        signed: bool,
        /// How many consecutive groups of a row share a float.
        groups: usize,
        /// The type of that float.
        factor: ElementType,
    },
}

/// The offset, which is added to the scaled numbers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offset {
    /// No offset.
    None,
    /// A float per group.
    Float(ElementType),
    /// Minus an unsigned byte per group times the group's scale: the zero points of GPTQ and AWQ.
    Zeros,
    /// Minus an unsigned byte per group times a float per several groups: the minima of llama.cpp's K-quants.
    Bytes {
        /// How many consecutive groups of a row share a float.
        groups: usize,
        /// The type of that float.
        factor: ElementType,
    },
}

/// A tensor of a packed weight; `[…, rows, width]` except [`Order`](Self::Order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `[…, rows, columns · bits / 32]` U32: the codes of a row as a little-endian bit stream, the first code
    /// in the lowest bits.
    Codes,
    /// `[…, rows, groups]`: floats, or bytes as U8 or I8.
    Scales,
    /// `[…, rows, groups / n]`: the float factors of byte scales.
    ScaleFactors,
    /// `[…, rows, groups]`: floats, or bytes as U8.
    Offsets,
    /// `[…, rows, groups / n]`: the float factors of byte offsets.
    OffsetFactors,
    /// `[columns]` I32: column `j` belongs to input `order[j]` of the layer.
    Order,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 6] =
        [Self::Codes, Self::Scales, Self::ScaleFactors, Self::Offsets, Self::OffsetFactors, Self::Order];

    /// The name in printed descriptions.
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

crate::named::serialize_by_name!(Part, |name| Part::ALL.into_iter().find(|part| part.name() == name));

impl Packing {
    /// `scale · q + bias` with unsigned integers, as `mx.quantize` packs in its affine mode; floats of type
    /// `element`.
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

    /// 4-bit floats in groups of 16 with 8-bit float scales.
    pub const NVFP4: Self = Self { group_size: 16, scale: Scale::E4M3, ..Self::MXFP4 };

    /// The parts of a weight with this packing, in the order of program arguments.
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

    /// The element type of a part.
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

    /// The elements of a part per row of `columns` values; for [`Part::Order`] those that all rows share.
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

    /// The bits per value, including its share of scales and offsets.
    pub fn bits_per_value(&self) -> f64 {
        let rows = self.parts().filter(|part| *part != Part::Order);
        // A row of a length that all parts divide.
        let columns = self.group_size * 512;
        let bits = rows.map(|part| self.width(part, columns) * self.element(part).bits()).sum::<usize>();
        bits as f64 / columns as f64
    }

    /// The type of unpacked values: the float type of the scales, or `BF16` if they have none, as in MLX.
    pub fn value_type(&self) -> ElementType {
        match self.scale {
            Scale::Float(element) | Scale::Bytes { factor: element, .. } => element,
            Scale::E8M0 | Scale::E4M3 => ElementType::BF16,
        }
    }

    /// Fails for an invalid packing, and for rows of `columns` values that it does not fit.
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
        assert_eq!(BlockType::Q6K.packing().element(Part::Scales), ElementType::I8);
        assert_eq!(Q4_K.bits_per_value(), 4.625);
        assert_eq!(Packing::affine(4, 64, ElementType::BF16).bits_per_value(), 4.5);
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let affine = Packing::affine(3, 32, ElementType::F16);
        let scales = |groups, factor| Scale::Bytes { signed: false, groups, factor };
        let offsets = |groups, factor| Offset::Bytes { groups, factor };
        for (packing, columns) in [(affine, 96), (Q4_K, 256), (Packing::MXFP8, 32), (Packing::NVFP4, 32)] {
            packing.check(columns).unwrap();
        }
        for (packing, columns) in [
            (affine, 48),
            (Packing { group_size: 16, ..affine }, 16),
            (Packing { group_size: 64, ..affine }, 96),
            (Packing { group_size: 0, ..affine }, 96),
            (Packing { group_size: 0, ..affine }, 0),
            (Packing { bits: 7, ..affine }, 96),
            (Packing { code: Code::E2M1, ..affine }, 96),
            (Packing { bits: 4, ..Packing::MXFP8 }, 96),
            (Packing { scale: Scale::Float(ElementType::U8), ..affine }, 96),
            (Packing { scale: scales(1, ElementType::U8), ..affine }, 96),
            (Packing { scale: scales(2, ElementType::F16), ..affine }, 96),
            (Packing { scale: scales(0, ElementType::F16), ..affine }, 0),
            (Packing { offset: Offset::Float(ElementType::U8), ..affine }, 96),
            (Packing { offset: offsets(1, ElementType::U8), ..affine }, 96),
            (Packing { offset: offsets(2, ElementType::F16), ..affine }, 96),
            (Packing { offset: offsets(0, ElementType::F16), ..affine }, 0),
        ] {
            let error = packing.check(columns).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.context("packing"), Some(&*packing.to_string()));
        }
    }
}
