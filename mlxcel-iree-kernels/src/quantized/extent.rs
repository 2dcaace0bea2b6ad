//! Whether a value is one number or a vector of them: what is computed for each lane of a panel is computed for one row too.

use std::fmt::Display;

use crate::writer::Writer;

/// How many numbers a value is.
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

    /// The constant `literal`, of a vector in each place.
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

    /// The float of 8 bits in the higher byte of each 16 bits, in float32 and divided by its [factor](SmallFloat::factor).
    pub(super) fn small_float(self, w: &mut Writer, bits: &str, kind: SmallFloat) -> String {
        let half = self.small_half(w, bits, kind);
        self.cast(w, "extf", &half, "f16", "f32")
    }

    /// The same in half precision, which holds it exactly.
    pub(super) fn small_half(self, w: &mut Writer, bits: &str, kind: SmallFloat) -> String {
        let ty = self.ty("i16");
        let half = match kind {
            SmallFloat::E4M3 => {
                // Half precision has one bit more of exponent.
                let one = self.constant(w, 1, "i16");
                let moved = w.arith("moved", "shrsi", bits, &one, &ty);
                let mask = self.constant(w, 0xbf80u16.cast_signed(), "i16");
                let half = w.arith("half", "andi", &moved, &mask, &ty);
                // All ones are no number, which half precision would take for one of its own: only they reach the exponent's highest
                // bit when one is added to them, and with that bit they are no number either.
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

/// A kind of floats of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmallFloat {
    E4M3,
    E5M2,
}

impl SmallFloat {
    /// What [`Extent::small_float`] has to be multiplied by: the biases of the exponents differ.
    pub(super) fn factor(self) -> f32 {
        match self {
            Self::E4M3 => 256.0,
            Self::E5M2 => 1.0,
        }
    }
}
