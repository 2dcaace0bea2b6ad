//! The form of a packed weight in kernels, and the arithmetic that multiplies it.

use mlxcel_core::Precision;
use mlxcel_models::Packing;
use mlxcel_models::packing::Code;

use super::prepare::LANES;
use crate::instructions::Instructions;
use crate::layout::Planes;

/// The most inputs whose products are summed before scaling: in fixed point their sum fits 32 bits.
const MOST_SUMMED: usize = 128;

/// Codes of a unit of 8-bit floats: two words of each lane fill a register of their own width.
const FLOATS: usize = 4;

/// A packed weight `[outputs, inputs]` in panels, each part in its own panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Rows of the weight.
    pub(super) outputs: usize,
    /// Values of a row.
    pub(super) inputs: usize,
    /// How they are packed.
    pub(super) packing: Packing,
    /// Rows of a panel.
    pub(super) lanes: usize,
}

impl Form {
    /// The whole panels; the remaining rows are [`tail`](Self::tail).
    pub(super) fn panels(&self) -> usize {
        self.outputs / self.lanes
    }

    /// The rows that fill no panel, stored row by row.
    pub(super) fn tail(&self) -> std::ops::Range<usize> {
        self.panels() * self.lanes..self.outputs
    }

    /// Consecutive inputs whose products are summed before scaling: a group, or an equal part of a large one.
    /// A chunk is a multiple of a unit of codes, or a unit is a multiple of a chunk.
    pub(super) fn chunk(&self) -> usize {
        let (group, unit) = (self.packing.group_size, self.unit());
        let fits = |chunk: &usize| {
            group.is_multiple_of(*chunk) && (chunk.is_multiple_of(unit) || unit.is_multiple_of(*chunk))
        };
        let sizes = (LANES..=MOST_SUMMED.min(group)).rev().filter(|size| size.is_multiple_of(LANES));
        sizes.into_iter().find(fits).unwrap_or(LANES)
    }

    /// The chunks of a row.
    pub(super) fn chunks(&self) -> usize {
        self.inputs / self.chunk()
    }

    /// The chunks that share a unit of codes: 1 if a chunk has whole units.
    pub(super) fn chunks_together(&self) -> usize {
        (self.unit() / self.chunk()).max(1)
    }

    /// The planes of the codes; none for codes that are floats, which lie in pairs.
    pub(super) fn planes(&self) -> Option<Planes> {
        match self.packing.code {
            Code::E4M3 | Code::E5M2 => None,
            _ => Planes::of(self.packing.bits),
        }
    }

    /// Consecutive codes that are unpacked together.
    pub(super) fn unit(&self) -> usize {
        self.planes().map_or(FLOATS, Planes::codes)
    }

    /// The words of a unit: of 16 bits if codes are floats, otherwise 32.
    pub(super) fn unit_words(&self) -> usize {
        self.planes().map_or(FLOATS / 2, Planes::words)
    }

    /// The words of a row.
    pub(super) fn words(&self) -> usize {
        self.inputs / self.unit() * self.unit_words()
    }

    /// The type of a word.
    pub(super) fn word(&self) -> &'static str {
        if self.planes().is_some() { "i32" } else { "i16" }
    }

    /// The bytes of a panel's codes.
    pub(super) fn panel_bytes(&self) -> usize {
        self.inputs * self.packing.bits / 8 * self.lanes
    }

    /// The packing as part of an identifier.
    pub(super) fn name(&self) -> String {
        let text = self.packing.to_string();
        let words =
            text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("_")
    }
}

/// The format of activations that are multiplied with packed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// They stay float32; packed values become float32.
    Float,
    /// Fixed point of 16 bits with a scale per group, as two signed bytes `256 · high + low`; four products
    /// of bytes at a time are summed in 32 bits, high and low bytes separately.
    Int16Split,
    /// Fixed point of 8 bits with a scale per group.
    Int8,
}

impl Arithmetic {
    /// The fastest arithmetic that `precision` allows for weights of a form: floats unless values are 8-bit
    /// integers.
    pub(super) fn of(form: &Form, instructions: &Instructions, precision: Precision) -> Self {
        let integers = instructions.int8_dot && form.planes().is_some();
        match precision {
            Precision::Native if integers => Self::Int16Split,
            Precision::Fast if integers => Self::Int8,
            _ => Self::Float,
        }
    }

    /// The name in labels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int16Split => "16bit",
            Self::Int8 => "8bit",
        }
    }

    /// Consecutive activations multiplied with one lane at a time; twice as many for
    /// [matrices](super::Product::matrices).
    pub(super) fn width(self) -> usize {
        if self == Self::Float { 1 } else { 4 }
    }

    /// The bytes, or floats, of an activation; each has its own sums.
    pub(super) fn planes(self) -> usize {
        if self == Self::Int16Split { 2 } else { 1 }
    }

    /// The type of one plane of an activation, as MLIR writes it.
    pub(super) fn activation(self) -> &'static str {
        if self == Self::Float { "f32" } else { "i8" }
    }

    /// The type that is multiplied with a lane: [`width`](Self::width) activations of one plane.
    pub(super) fn lane(self) -> &'static str {
        if self == Self::Float { "f32" } else { "i32" }
    }

    /// The largest activation in fixed point: both of its bytes must fit `i8`.
    pub(super) fn largest(self) -> Option<u32> {
        match self {
            Self::Float => None,
            Self::Int16Split => Some(127 * 256 + 127),
            Self::Int8 => Some(127),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(packing: &str) -> Form {
        Form { outputs: 40, inputs: 256, packing: packing.parse().unwrap(), lanes: 16 }
    }

    #[test]
    fn the_largest_activation_fits_two_signed_bytes() {
        let largest = Arithmetic::Int16Split.largest().unwrap() as i32;
        let bytes = |value: i32| ((value + 128) >> 8, value - ((value + 128) >> 8 << 8));
        assert_eq!((bytes(largest), bytes(-largest)), ((127, 127), (-127, -127)));
        assert_eq!(bytes(largest + 1), (128, -128));
    }

    #[test]
    fn the_sum_of_a_chunk_fits_32_bits() {
        let largest = Arithmetic::Int16Split.largest().unwrap() as usize;
        assert!(MOST_SUMMED * 255 * largest <= i32::MAX as usize);
    }

    #[test]
    fn sizes_match_the_layout() {
        let form = form("u4/64 bf16 + bf16");
        assert_eq!((form.panels(), form.tail(), form.chunks()), (2, 32..40, 4));
        assert_eq!((form.unit(), form.words(), form.panel_bytes()), (8, 32, 2048));
        assert_eq!(form.name(), "u4_64_bf16_bf16");
    }

    #[test]
    fn chunks_are_groups_or_parts_of_them() {
        let chunk = |packing: &str| {
            let form = form(packing);
            (form.chunk(), form.chunks_together())
        };
        assert_eq!(chunk("u4/128 f16"), (128, 1));
        assert_eq!(chunk("e4m3/256 f32"), (128, 1));
        assert_eq!(chunk("u8-128/192 f32"), (96, 1));
        assert_eq!(chunk("u6-32/16 i8*f16/16"), (16, 1));
        assert_eq!(chunk("u3-4/16 i8*f16/16"), (16, 2), "a word has one bit of each of 32 codes");
        assert_eq!(chunk("u5/48 f16"), (16, 2));
    }
}
