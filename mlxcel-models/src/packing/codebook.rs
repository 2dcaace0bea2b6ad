//! Codebooks: the numbers that codes represent.

use super::Code;

/// OCP Microscaling Formats (MX) specification 1.0, section 5.3.3.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The table of llama.cpp's non-linear 4-bit types, which is part of the GGUF format.
const IQ4_NL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

impl Code {
    /// The number that `code` represents.
    #[inline]
    pub fn number(self, code: u8) -> f32 {
        match self {
            Self::Integer { zero } => f32::from(code) - f32::from(zero),
            Self::E2M1 => {
                let magnitude = E2M1[usize::from(code & 7)];
                if code & 8 == 0 { magnitude } else { -magnitude }
            }
            Self::E4M3 => e4m3(code),
            Self::E5M2 => f32::from(half::f16::from_bits(u16::from(code) << 8)),
            Self::Iq4Nl => IQ4_NL[usize::from(code & 15)],
        }
    }

    /// The numbers of all codes of `bits` bits, in order.
    pub fn numbers(self, bits: usize) -> Vec<f32> {
        let last = u8::try_from((1usize << bits.min(8)) - 1).unwrap_or(u8::MAX);
        (0..=last).map(|code| self.number(code)).collect()
    }
}

/// An 8-bit float of 4 exponent bits, biased by 7; all ones are NaN (OCP 8-bit floating point specification
/// 1.0).
pub(crate) fn e4m3(code: u8) -> f32 {
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    // The same exponent and fraction in half precision, whose bias is 15, is the number times 2^-8.
    let bits = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7;
    f32::from(half::f16::from_bits(bits)) * 256.0
}

/// A power of two by its exponent, biased by 127; 255 is NaN.
pub(super) fn e8m0(exponent: u8) -> f32 {
    match exponent {
        // 2^-127 is not normal in single precision.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_decode_to_known_values() {
        for code in 0..=u8::MAX {
            let (sign, exponent, fraction) = (code >> 7, i32::from(code >> 3 & 15), f32::from(code & 7));
            let sign = if sign == 0 { 1.0 } else { -1.0 };
            let expected = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => sign * fraction / 8.0 * 2f32.powi(-6),
                _ => sign * (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
            };
            let found = e4m3(code);
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{code}: {found} {expected}");
        }
        assert_eq!(Code::E4M3.number(0x7e), 448.0);
        assert_eq!(Code::E5M2.number(0x7b), 57344.0);
        assert_eq!(Code::E2M1.numbers(4)[7..10], [6.0, -0.0, -0.5]);
        assert_eq!([2, 4, 8].map(|bits| Code::Iq4Nl.numbers(bits).len()), [4, 16, 256]);
        assert_eq!([e8m0(0), e8m0(127), e8m0(128)], [2f32.powi(-127), 1.0, 2.0]);
        assert_eq!(Code::Integer { zero: 8 }.numbers(4)[0], -8.0);
    }
}
