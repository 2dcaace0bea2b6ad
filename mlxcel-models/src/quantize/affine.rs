//! Affine quantization of groups, as `mlx.core.quantize` computes it on a CPU.
//!
//! With the extremes of a group being `w_min` and `w_max`, and `n` the largest packed value: `scale` is their distance over `n`, and
//! the one that is farther from zero, the *edge*, is to be met exactly. So the scale gets the sign that makes the edge the group's
//! zero point, and is stretched until zero lies on a whole step from it: `q₀ = round(edge / scale)`, `scale = edge / q₀`,
//! `bias = edge`. A value is packed as `round((w − bias) / scale)`, limited to `0..=n`, with the scale in float32; ties go to even.
//! Scales and biases are rounded to the weight's own type afterwards.

use half::{bf16, f16};

use crate::element::ElementType;

/// The smallest scale, so that groups of equal values do not divide by zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// The longest group.
const LONGEST: usize = 128;

/// How matrices of one element type are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affine {
    bits: usize,
    group_size: usize,
    float: Float,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Float {
    F32,
    F16,
    BF16,
}

impl Affine {
    /// Packing from `element`, if that is a type of dense weights; `group_size` is one that there is.
    pub(super) fn new(bits: usize, group_size: usize, element: ElementType) -> Option<Self> {
        let float = match element {
            ElementType::F32 => Float::F32,
            ElementType::F16 => Float::F16,
            ElementType::BF16 => Float::BF16,
            _ => return None,
        };
        Some(Self { bits, group_size, float })
    }

    /// Bytes of `values` values as they are in the source.
    pub(super) fn source_bytes(&self, values: usize) -> usize {
        values * self.float.bytes()
    }

    /// Bytes of words for that many bytes of the source.
    pub(super) fn word_bytes(&self, source: usize) -> usize {
        source / self.float.bytes() * self.bits / 8
    }

    /// Bytes of scales, and as many of biases, for that many bytes of the source.
    pub(super) fn scale_bytes(&self, source: usize) -> usize {
        source / self.group_size
    }

    /// Packs whole groups; false where there are values that cannot be packed: infinities, and what is no number.
    pub(super) fn pack(&self, source: &[u8], words: &mut [u8], scales: &mut [u8], biases: &mut [u8]) -> bool {
        let element = self.float.bytes();
        let group = self.group_size * element;
        let mut values = [0.0; LONGEST];
        let values = &mut values[..self.group_size.min(LONGEST)];
        let groups = source
            .chunks_exact(group)
            .zip(words.chunks_exact_mut(self.word_bytes(group)))
            .zip(scales.chunks_exact_mut(element))
            .zip(biases.chunks_exact_mut(element));
        let mut finite = true;
        for (((source, words), scale_out), bias_out) in groups {
            self.float.read(source, values);
            let (scale, bias) = scale_and_bias(values, ((1u32 << self.bits) - 1) as f32);
            finite &= scale.is_finite() && bias.is_finite();
            match self.bits {
                4 => pack_values::<4>(values, scale, bias, words),
                _ => pack_values::<8>(values, scale, bias, words),
            }
            self.float.write(scale, scale_out);
            self.float.write(bias, bias_out);
        }
        finite
    }
}

fn scale_and_bias(values: &[f32], largest: f32) -> (f32, f32) {
    let (mut min, mut max, mut sum) = (f32::INFINITY, f32::NEG_INFINITY, 0.0f32);
    for &value in values {
        min = if value < min { value } else { min };
        max = if value > max { value } else { max };
        // Zero for what is finite, else no number.
        sum += value * 0.0;
    }
    if sum != 0.0 {
        return (f32::NAN, f32::NAN);
    }
    let low = min.abs() > max.abs();
    let step = ((max - min) / largest).max(SMALLEST_SCALE);
    let (scale, edge) = if low { (step, min) } else { (-step, max) };
    let zero = (edge / scale).round_ties_even();
    if zero == 0.0 { (scale, 0.0) } else { (edge / zero, edge) }
}

/// Packs values of `BITS` bits into words of 32 bits, little-endian and the first value in the lowest bits: the order in which
/// bytes hold them.
fn pack_values<const BITS: usize>(values: &[f32], scale: f32, bias: f32, words: &mut [u8]) {
    /// Above this floats are whole numbers, so that adding it rounds, ties to even, and leaves the number in the lowest bits.
    const WHOLE: f32 = 8_388_608.0;
    let largest = ((1u32 << BITS) - 1) as f32;
    let packed = |value: f32| (((value - bias) / scale).clamp(0.0, largest) + WHOLE).to_bits() as u8;
    for (byte, values) in words.iter_mut().zip(values.chunks_exact(8 / BITS)) {
        *byte = values.iter().rev().fold(0, |byte, &value| (byte << (BITS % 8)) | packed(value));
    }
}

impl Float {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    fn read(self, source: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => {
                for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => {
                for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                    *value = f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Self::BF16 => {
                for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                    *value = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }

    fn write(self, value: f32, target: &mut [u8]) {
        match self {
            Self::F32 => target.copy_from_slice(&value.to_le_bytes()),
            Self::F16 => target.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::BF16 => target.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(bits: usize, values: &[f32]) -> (Vec<u8>, f32, f32, bool) {
        let affine = Affine::new(bits, values.len(), ElementType::F32).unwrap();
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut words = vec![0; affine.word_bytes(source.len())];
        let (mut scale, mut bias) = ([0; 4], [0; 4]);
        let finite = affine.pack(&source, &mut words, &mut scale, &mut bias);
        (words, f32::from_le_bytes(scale), f32::from_le_bytes(bias), finite)
    }

    #[test]
    fn the_farther_edge_and_zero_are_met_exactly() {
        let mut values = [0.0f32; 32];
        values[..4].copy_from_slice(&[-1.5, 0.1, 0.75, 0.0]);
        let (words, scale, bias, finite) = pack(4, &values);
        assert!(finite);
        assert_eq!((scale, bias), (0.15, -1.5));
        // −1.5 is 0, 0.0 is 10, 0.1 is round(10.67), 0.75 is 15.
        assert_eq!(words[..2], [0xb0, 0xaf]);
        values.iter_mut().for_each(|value| *value = -*value);
        let (negated, scale, bias, _) = pack(4, &values);
        assert_eq!((negated, scale, bias), (words, -0.15, 1.5));
    }

    #[test]
    fn groups_of_equal_values_are_exact() {
        let (words, scale, bias, finite) = pack(8, &[0.0; 32]);
        assert!(finite && scale != 0.0);
        assert!(words.iter().all(|&byte| f32::from(byte) * scale + bias == 0.0));
        let (words, scale, bias, _) = pack(8, &[3.0; 64]);
        assert!(words.iter().all(|&byte| f32::from(byte) * scale + bias == 3.0));
    }

    #[test]
    fn ties_go_to_even() {
        // Steps of one from 15 down to zero.
        let mut values = [15.0f32; 32];
        values[..8].copy_from_slice(&[0.0, 0.5, 1.5, 2.5, 3.5, 14.5, 13.5, 12.5]);
        let (words, scale, bias, _) = pack(4, &values);
        assert_eq!((scale, bias), (-1.0, 15.0));
        let unpacked: Vec<u8> = words.iter().take(4).flat_map(|byte| [byte & 15, byte >> 4]).collect();
        assert_eq!(unpacked, [15, 14, 14, 12, 12, 0, 2, 2]);
    }

    #[test]
    fn what_is_no_number_is_noticed() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 32];
            values[7] = value;
            assert!(!pack(4, &values).3, "{value}");
        }
        // Their distance is more than a float can be.
        let mut values = [f32::MAX; 32];
        values[3] = f32::MIN;
        assert!(!pack(4, &values).3);
    }
}
