//! Whether a value is a scalar or a vector: code for the lanes of a panel is also used for one row.

use std::fmt::Display;

use crate::writer::Writer;

/// The number of elements of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    One,
    Vector(usize),
}

impl Extent {
    /// The type of such a value of `element`.
    pub(super) fn ty(self, element: &str) -> String {
        match self {
            Self::One => element.to_owned(),
            Self::Vector(count) => format!("vector<{count}x{element}>"),
        }
    }

    /// The constant `literal`, in every lane of a vector.
    pub(super) fn constant(self, w: &mut Writer, literal: impl Display, element: &str) -> String {
        match self {
            Self::One => w.constant(literal, element),
            Self::Vector(_) => w.constant(format!("dense<{literal}>"), self.ty(element)),
        }
    }

    /// The constant `literal` in float32.
    pub(super) fn float(self, w: &mut Writer, literal: f32) -> String {
        self.constant(w, format_args!("{literal:?}"), "f32")
    }

    /// `operation` of the dialect `arith` on one value, from elements `from` to elements `to`.
    pub(super) fn cast(self, w: &mut Writer, operation: &str, value: &str, from: &str, to: &str) -> String {
        w.set("cast", format_args!("arith.{operation} {value} : {} to {}", self.ty(from), self.ty(to)))
    }

    /// The 8-bit float in the high byte of each 16 bits, in float32 and divided by its [factor](SmallFloat::factor).
    pub(super) fn small_float(self, w: &mut Writer, bits: &str, kind: SmallFloat) -> String {
        let half = self.small_half(w, bits, kind);
        self.cast(w, "extf", &half, "f16", "f32")
    }

    /// The same in half precision, which holds it exactly.
    pub(super) fn small_half(self, w: &mut Writer, bits: &str, kind: SmallFloat) -> String {
        let ty = self.ty("i16");
        let half = match kind {
            SmallFloat::E4M3 => {
                // Half precision has one more exponent bit.
                let one = self.constant(w, 1, "i16");
                let moved = w.arith("moved", "shrsi", bits, &one, &ty);
                let mask = self.constant(w, 0xbf80u16.cast_signed(), "i16");
                let half = w.arith("half", "andi", &moved, &mask, &ty);
                // All ones are NaN, which half precision would read as a number: adding one carries into the exponent's highest bit
                // for them only, and with that bit they are NaN too.
                let least = self.constant(w, 0x80, "i16");
                let more = w.arith("more", "addi", &half, &least, &ty);
                let highest = self.constant(w, 0x4000, "i16");
                let highest = w.arith("highest", "andi", &more, &highest, &ty);
                w.arith("half", "ori", &half, &highest, &ty)
            }
            SmallFloat::E5M2 => {
                let mask = self.constant(w, 0xff00u16.cast_signed(), "i16");
                w.arith("half", "andi", bits, &mask, &ty)
            }
        };
        self.cast(w, "bitcast", &half, "i16", "f16")
    }
}

/// A kind of 8-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmallFloat {
    E4M3,
    E5M2,
}

impl SmallFloat {
    /// The factor that [`Extent::small_float`] must be multiplied by: the exponents' biases differ.
    pub(super) fn factor(self) -> f32 {
        match self {
            Self::E4M3 => 256.0,
            Self::E5M2 => 1.0,
        }
    }
}
