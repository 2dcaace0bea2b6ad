//! 8-bit floats as larger ones.

use crate::value::Operand;
use crate::writer::Writer;

/// A kind of 8-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmallFloat {
    E4M3,
    E5M2,
}

impl SmallFloat {
    /// The factor that [`widened`](Self::widened) floats must be multiplied by: the exponents' biases differ.
    pub(super) fn factor(self) -> f32 {
        match self {
            Self::E4M3 => 256.0,
            Self::E5M2 => 1.0,
        }
    }

    /// The float in the high byte of each 16 bits, in float32 and divided by its [factor](Self::factor).
    pub(super) fn widened(self, w: &mut Writer, bits: &Operand) -> Operand {
        let half = self.half(w, bits);
        w.cast("cast", "extf", &half, "f32")
    }

    /// The same in half precision, which holds it exactly.
    pub(super) fn half(self, w: &mut Writer, bits: &Operand) -> Operand {
        let ty = bits.ty;
        let half = match self {
            Self::E4M3 => {
                // Half precision has one more exponent bit.
                let one = w.constant(1, ty);
                let moved = w.arith("moved", "shrsi", bits, &one);
                let mask = w.constant(0xbf80u16.cast_signed(), ty);
                let half = w.arith("half", "andi", &moved, &mask);
                // All ones are NaN, which half precision would read as a number: adding one carries into the
                // exponent's highest bit for them only, and with that bit they are NaN too.
                let least = w.constant(0x80, ty);
                let more = w.arith("more", "addi", &half, &least);
                let highest = w.constant(0x4000, ty);
                let highest = w.arith("highest", "andi", &more, &highest);
                w.arith("half", "ori", &half, &highest)
            }
            Self::E5M2 => {
                let mask = w.constant(0xff00u16.cast_signed(), ty);
                w.arith("half", "andi", bits, &mask)
            }
        };
        w.cast("cast", "bitcast", &half, "f16")
    }
}
