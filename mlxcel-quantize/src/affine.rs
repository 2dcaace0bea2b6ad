//! Affine quantization of groups, as `mlx.core.quantize` computes it on a CPU.
//!
//! With `w_min` and `w_max` the extremes of a group and `n` the largest code, `scale` is their distance
//! divided by `n`. The extreme with the larger magnitude, the *edge*, is represented exactly: the scale gets
//! the sign that makes the edge the group's zero point, and is stretched until zero is a whole number of
//! steps from it: `q₀ = round(edge / scale)`, `scale = edge / q₀`, `bias = edge`. A value's code is `round((w
//! − bias) / scale)`, clamped to `0..=n`, with the scale in float32 and ties to even. Scales and biases are
//! rounded to their stored type afterwards.

/// The smallest scale, so that groups of equal values do not divide by zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// Scale and bias of a group whose codes go up to `largest`; NaN if the group has infinite or NaN values.
pub(super) fn scale_and_bias(values: &[f32], largest: f32) -> (f32, f32) {
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

pub(super) fn encode(values: &[f32], (scale, bias): (f32, f32), largest: f32, codes: &mut [u8]) {
    /// Above this floats are whole numbers, so that adding it rounds, ties to even, and leaves the number in
    /// the lowest bits.
    const WHOLE: f32 = 8_388_608.0;
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = (((value - bias) / scale).clamp(0.0, largest) + WHOLE).to_bits() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(values: &[f32]) -> (Vec<u8>, f32, f32) {
        let parameters = scale_and_bias(values, 15.0);
        let mut codes = vec![0; values.len()];
        encode(values, parameters, 15.0, &mut codes);
        (codes, parameters.0, parameters.1)
    }

    #[test]
    fn the_larger_bound_and_zero_are_exact() {
        let mut values = [0.0f32; 32];
        values[..4].copy_from_slice(&[-1.5, 0.1, 0.75, 0.0]);
        let (codes, scale, bias) = pack(&values);
        assert_eq!((scale, bias), (0.15, -1.5));
        // 0.1 is round(10.67).
        assert_eq!(codes[..4], [0, 11, 15, 10]);
        values.iter_mut().for_each(|value| *value = -*value);
        assert_eq!(pack(&values), (codes, -0.15, 1.5));
    }

    #[test]
    fn groups_of_equal_values_are_exact() {
        for value in [0.0, 3.0] {
            let (codes, scale, bias) = pack(&[value; 32]);
            assert!(scale != 0.0 && codes.iter().all(|&code| f32::from(code) * scale + bias == value));
        }
    }

    #[test]
    fn ties_go_to_even() {
        // Steps of one from 15 down to zero.
        let mut values = [15.0f32; 32];
        values[..8].copy_from_slice(&[0.0, 0.5, 1.5, 2.5, 3.5, 14.5, 13.5, 12.5]);
        let (codes, scale, bias) = pack(&values);
        assert_eq!((scale, bias), (-1.0, 15.0));
        assert_eq!(codes[..8], [15, 14, 14, 12, 12, 0, 2, 2]);
    }

    #[test]
    fn nan_weights_are_detected() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 32];
            values[7] = value;
            assert!(!scale_and_bias(&values, 15.0).0.is_finite(), "{value}");
        }
        // Their distance is more than a float can be.
        let mut values = [f32::MAX; 32];
        values[3] = f32::MIN;
        assert!(!scale_and_bias(&values, 15.0).0.is_finite());
    }
}
