//! What a packed weight looks like to a kernel, and the arithmetic with which it is multiplied.

use mlxcel_core::Precision;
use mlxcel_stablehlo::ElementType;

use crate::instructions::{Instructions, VectorSet};

/// A packed weight `[outputs, inputs]` in panels: the words, scales and biases each in theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Rows of the weight.
    pub(super) outputs: usize,
    /// Values of a row.
    pub(super) inputs: usize,
    /// Bits of a value: 4 or 8.
    pub(super) bits: usize,
    /// Consecutive inputs that share a scale and a bias.
    pub(super) group_size: usize,
    /// The type of scales and biases.
    pub(super) scale: ElementType,
    /// Rows of a panel.
    pub(super) lanes: usize,
}

impl Form {
    /// The whole panels; what is left over are [`tail`](Self::tail) rows.
    pub(super) fn panels(&self) -> usize {
        self.outputs / self.lanes
    }

    /// The rows that fill no panel, and lie as they are stored.
    pub(super) fn tail(&self) -> std::ops::Range<usize> {
        self.panels() * self.lanes..self.outputs
    }

    /// The groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.inputs / self.group_size
    }

    /// The values in a word.
    pub(super) fn values(&self) -> usize {
        32 / self.bits
    }

    /// The words of a row.
    pub(super) fn words(&self) -> usize {
        self.inputs / self.values()
    }

    /// The words of a group.
    pub(super) fn group_words(&self) -> usize {
        self.group_size / self.values()
    }

    /// The bytes of a panel's words.
    pub(super) fn panel_bytes(&self) -> usize {
        self.words() * self.lanes * 4
    }

    /// The lowest bit of value `value` in a word of a panel; in rows as stored it is `value * bits`.
    pub(super) fn bit(&self, value: usize) -> usize {
        if self.bits == 4 { value % 4 * 8 + value / 4 * 4 } else { value * self.bits }
    }
}

/// What activations become before they meet packed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// They stay float32; packed values become float32.
    Float,
    /// Fixed point of 16 bits with a scale for each group, as two signed bytes `256 · high + low`; four products of bytes at a
    /// time are summed in 32 bits, those of high and low bytes apart.
    Wide,
    /// Fixed point of 8 bits with a scale for each group.
    Narrow,
}

/// How some values are taken out of each lane of a vector of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// How far the word is shifted right.
    pub(super) shift: usize,
    /// The bits kept after that.
    pub(super) mask: u32,
}

impl Arithmetic {
    /// The fastest arithmetic that `precision` allows.
    pub(super) fn of(instructions: &Instructions, precision: Precision) -> Self {
        let integers = instructions.int8_dot && instructions.set != VectorSet::Neon;
        match precision {
            Precision::Native if integers => Self::Wide,
            Precision::Fast if integers => Self::Narrow,
            _ => Self::Float,
        }
    }

    /// A word for names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Wide => "16bit",
            Self::Narrow => "8bit",
        }
    }

    /// Consecutive activations that meet one lane at a time.
    pub(super) fn width(self) -> usize {
        if self == Self::Float { 1 } else { 4 }
    }

    /// The bytes, or floats, that make up an activation; each has sums of its own.
    pub(super) fn planes(self) -> usize {
        if self == Self::Wide { 2 } else { 1 }
    }

    /// The type of one plane of an activation, as MLIR writes it.
    pub(super) fn activation(self) -> &'static str {
        if self == Self::Float { "f32" } else { "i8" }
    }

    /// The type of what meets a lane: [`width`](Self::width) activations of one plane.
    pub(super) fn lane(self) -> &'static str {
        if self == Self::Float { "f32" } else { "i32" }
    }

    /// The largest activation in fixed point: both of its bytes must fit theirs.
    pub(super) fn largest(self) -> Option<u32> {
        match self {
            Self::Float => None,
            Self::Wide => Some(127 * 256 + 127),
            Self::Narrow => Some(127),
        }
    }

    /// How the values of a word are taken out, in their order.
    pub(super) fn steps(self, form: &Form) -> Vec<Step> {
        let width = self.width();
        // Values that meet a lane together stand as far apart as activations do, so one mask takes them all out.
        let apart = 32 / width;
        let mask = (0..width).fold(0, |mask, part| mask | ((1u32 << form.bits) - 1) << (part * apart));
        (0..form.values()).step_by(width).map(|first| Step { shift: form.bit(first), mask }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(bits: usize) -> Form {
        Form { outputs: 40, inputs: 256, bits, group_size: 64, scale: ElementType::BF16, lanes: 16 }
    }

    /// What a word of a panel holds in which value `i` is `i + 1`.
    fn word(form: &Form) -> u32 {
        (0..form.values()).fold(0, |word, value| word | (value as u32 + 1) << form.bit(value))
    }

    #[test]
    fn every_value_of_a_word_is_taken_out_once_and_in_its_place() {
        for (bits, arithmetic) in [4, 8].into_iter().flat_map(|bits| {
            [Arithmetic::Float, Arithmetic::Wide, Arithmetic::Narrow].map(|arithmetic| (bits, arithmetic))
        }) {
            let form = form(bits);
            let width = arithmetic.width();
            let parts = arithmetic.steps(&form).into_iter().flat_map(|step| {
                let taken = u64::from(word(&form) >> step.shift & step.mask);
                (0..width).map(move |part| taken >> (part * 32 / width) & ((1 << (32 / width)) - 1))
            });
            let wanted = 1..=form.values() as u64;
            assert_eq!(parts.collect::<Vec<_>>(), wanted.collect::<Vec<_>>(), "{bits} bits, {arithmetic:?}");
        }
    }

    #[test]
    fn the_largest_activation_fits_two_signed_bytes() {
        let largest = Arithmetic::Wide.largest().unwrap() as i32;
        let bytes = |value: i32| ((value + 128) >> 8, value - ((value + 128) >> 8 << 8));
        assert_eq!((bytes(largest), bytes(-largest)), ((127, 127), (-127, -127)));
        assert_eq!(bytes(largest + 1), (128, -128));
    }

    #[test]
    fn sizes_are_those_of_the_layout() {
        let form = form(4);
        assert_eq!((form.panels(), form.tail(), form.groups()), (2, 32..40, 4));
        assert_eq!((form.values(), form.words(), form.group_words(), form.panel_bytes()), (8, 32, 8, 2048));
    }
}
