//! Groups of small floats with an 8-bit scale, as `mlx.core.quantize` computes them on a CPU in its modes
//! `mxfp4`, `mxfp8` and `nvfp4`.
//!
//! The ideal scale is the largest magnitude of a group divided by the largest code (6 or 448). In the OCP
//! microscaling modes it is rounded up to a power of two, `ceil(log2(scale))`, so that no value is clipped;
//! in `nvfp4` to the nearest OCP E4M3 number. Values are divided by it and rounded to the nearest code: ties
//! go towards zero in E2M1, to even in E4M3, which is clamped to 448. Every step is rounded to the weight's
//! own type.

use mlxcel_models::packing::Code;
use mlxcel_models::read::Float;

/// The largest number of E2M1.
const LARGEST_E2M1: f32 = 6.0;

/// The largest number of E4M3.
const LARGEST_E4M3: f32 = 448.0;

/// Between these and the next lower one lie the magnitudes that have a code, from the second code on.
const BETWEEN_E2M1: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// Writes the codes of a group of `code` (E2M1 or E4M3), and answers the byte of its scale: an exponent, or
/// if `fine` an E4M3. `None` if the group has infinite or NaN values.
pub(super) fn encode(values: &[f32], code: Code, fine: bool, float: Float, codes: &mut [u8]) -> Option<u8> {
    let (mut magnitude, mut sum) = (0.0f32, 0.0f32);
    for &value in values {
        magnitude = magnitude.max(value.abs());
        sum += value * 0.0;
    }
    if sum != 0.0 {
        return None;
    }
    let largest = if code == Code::E4M3 { LARGEST_E4M3 } else { LARGEST_E2M1 };
    let wanted = float.round(magnitude / largest);
    let (byte, scale) = if fine {
        let byte = to_e4m3(wanted);
        (byte, Code::E4M3.number(byte))
    } else {
        let exponent = if wanted == 0.0 { 0.0 } else { f64::from(wanted).log2().ceil() };
        let exponent = exponent.clamp(-127.0, 127.0) as i16;
        // Biased it is 0 to 254.
        ((exponent + 127) as u8, float.round(2f32.powi(i32::from(exponent))))
    };
    for (out, &value) in codes.iter_mut().zip(values) {
        // What a scale of zero leaves is infinite, or no number; MLX gives it the first code.
        let scaled = if scale == 0.0 { 0.0 } else { float.round(value / scale) };
        *out = if code == Code::E4M3 { to_e4m3(scaled) } else { to_e2m1(scaled) };
    }
    Some(byte)
}

fn to_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let code = BETWEEN_E2M1.iter().map(|&between| u8::from(magnitude > between)).sum::<u8>();
    // There is one zero.
    if code > 0 && value < 0.0 { code | 8 } else { code }
}

/// The nearest number of OCP's E4M3 (bias 7), limited to its largest; ties go to even.
fn to_e4m3(value: f32) -> u8 {
    /// The least normal number, 2⁻⁶.
    const NORMAL: f32 = 0.015_625;
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(LARGEST_E4M3);
    let code = if magnitude < NORMAL {
        // Below it numbers are 2⁻⁹ apart.
        (magnitude * 512.0).round_ties_even() as u8
    } else {
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - (120 << 3)) as u8
    };
    sign | code
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_code_quantizes_to_itself() {
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(to_e4m3(Code::E4M3.number(code)), code);
        }
        assert_eq!([to_e4m3(1e9), to_e4m3(-449.0), to_e4m3(1e-9)], [0x7e, 0xfe, 0]);
        for code in (0..16u8).filter(|&code| code != 8) {
            assert_eq!(to_e2m1(Code::E2M1.number(code)), code);
        }
        assert_eq!([0.25, -0.25, 2.5, -5.0, 5.1, 100.0].map(to_e2m1), [0, 0, 4, 14, 7, 7]);
    }

    #[test]
    fn nan_weights_are_detected() {
        for value in [f32::NAN, f32::INFINITY] {
            let encoded = encode(&[1.0, value], Code::E2M1, false, Float::F32, &mut [0; 2]);
            assert_eq!(encoded, None, "{value}");
        }
    }
}
