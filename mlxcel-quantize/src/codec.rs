//! Packs values as MLX does, and measures the error.

use serde::{Deserialize, Serialize};

use mlxcel_models::packing::{Code, Packing};
use mlxcel_models::read::{Float, Mode, Scheme};

use super::affine;
use super::microscaling;

/// The longest group.
const LONGEST: usize = 128;

/// How the values of a weight are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Codec {
    pub(super) scheme: Scheme,
    /// The type of the weight that values come from, in which they are scaled.
    pub(super) source: Float,
    /// The type of scales and biases that are floats.
    pub(super) scales: Float,
}

/// What differs between values and the same ones packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Deviation {
    /// The sum of the squares of all differences.
    squares: f64,
    /// The sum of the squares of all values.
    power: f64,
    /// The largest difference.
    largest: f32,
}

impl Deviation {
    pub(super) fn add(&mut self, other: Self) {
        self.squares += other.squares;
        self.power += other.power;
        self.largest = self.largest.max(other.largest);
    }

    /// The root of the mean square of all differences over that of the values.
    pub(super) fn relative_rms(&self) -> f64 {
        if self.power > 0.0 { (self.squares / self.power).sqrt() } else { 0.0 }
    }

    pub(super) fn largest(&self) -> f32 {
        self.largest
    }

    fn note(&mut self, values: &[f32], packed: &[f32]) {
        // Sums side by side, which the compiler keeps in one register.
        let (mut squares, mut power, mut largest) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
        for (values, packed) in values.as_chunks::<8>().0.iter().zip(packed.as_chunks::<8>().0) {
            for lane in 0..8 {
                let difference = values[lane] - packed[lane];
                squares[lane] += difference * difference;
                power[lane] += values[lane] * values[lane];
                largest[lane] = largest[lane].max(difference.abs());
            }
        }
        let sum = |lanes: [f32; 8]| lanes.into_iter().map(f64::from).sum::<f64>();
        self.squares += sum(squares);
        self.power += sum(power);
        self.largest = largest.into_iter().fold(self.largest, f32::max);
    }
}

impl Codec {
    pub(super) fn packing(&self) -> Packing {
        self.scheme.packing(self.scales.element())
    }

    /// Whether there is a bias for each group.
    pub(super) fn has_biases(&self) -> bool {
        self.scheme.mode == Mode::Affine
    }

    pub(super) fn code_bytes(&self, values: usize) -> usize {
        values / 8 * self.scheme.bits
    }

    /// Bytes of scales, and as many of biases if there are any, for this many values.
    pub(super) fn scale_bytes(&self, values: usize) -> usize {
        values / self.scheme.group_size * if self.has_biases() { self.scales.bytes() } else { 1 }
    }

    /// Packs whole groups and answers what differs; `None` where there are values that cannot be packed:
    /// infinities, and what is no number.
    pub(super) fn pack(
        &self,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [u8],
        biases: &mut [u8],
    ) -> Option<Deviation> {
        match self.scheme.bits {
            2 => self.pack_as::<2>(values, codes, scales, biases),
            3 => self.pack_as::<3>(values, codes, scales, biases),
            4 => self.pack_as::<4>(values, codes, scales, biases),
            5 => self.pack_as::<5>(values, codes, scales, biases),
            6 => self.pack_as::<6>(values, codes, scales, biases),
            _ => self.pack_as::<8>(values, codes, scales, biases),
        }
    }

    fn pack_as<const BITS: usize>(
        &self,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [u8],
        biases: &mut [u8],
    ) -> Option<Deviation> {
        let group = self.scheme.group_size.min(LONGEST);
        let mut deviation = Deviation::default();
        let (mut numbers, mut packed) = ([0u8; LONGEST], [0.0f32; LONGEST]);
        let (numbers, packed) = (&mut numbers[..group], &mut packed[..group]);
        let scale_bytes = self.scale_bytes(group);
        let groups = values
            .chunks_exact(group)
            .zip(codes.chunks_exact_mut(group * BITS / 8))
            .zip(scales.chunks_exact_mut(scale_bytes));
        let mut biases = biases.chunks_exact_mut(scale_bytes);
        for ((values, codes), scale_out) in groups {
            match self.scheme.mode {
                Mode::Affine => {
                    let largest = ((1u32 << BITS) - 1) as f32;
                    let (scale, bias) = affine::scale_and_bias(values, largest);
                    if !scale.is_finite() || !bias.is_finite() {
                        return None;
                    }
                    affine::encode(values, (scale, bias), largest, numbers);
                    self.scales.write(&[scale], scale_out);
                    self.scales.write(&[bias], biases.next()?);
                    let (scale, bias) = (self.scales.round(scale), self.scales.round(bias));
                    for (packed, &number) in packed.iter_mut().zip(&*numbers) {
                        *packed = scale * f32::from(number) + bias;
                    }
                }
                mode => {
                    let code = if mode == Mode::Mxfp8 { Code::E4M3 } else { Code::E2M1 };
                    let fine = mode == Mode::Nvfp4;
                    let byte = microscaling::encode(values, code, fine, self.source, numbers)?;
                    scale_out.copy_from_slice(&[byte]);
                    let scale = if fine { Code::E4M3.number(byte) } else { 2f32.powi(i32::from(byte) - 127) };
                    for (packed, &number) in packed.iter_mut().zip(&*numbers) {
                        *packed = scale * code.number(number);
                    }
                }
            }
            write_codes::<BITS>(numbers, codes);
            deviation.note(values, packed);
        }
        Some(deviation)
    }
}

/// Writes codes of `BITS` bits as a stream of bits, little-endian, the first code in the lowest: eight of
/// them are `BITS` bytes.
fn write_codes<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    for (bytes, codes) in out.chunks_exact_mut(BITS).zip(codes.as_chunks::<8>().0) {
        let stream = (0..8).fold(0, |stream, index| stream | u64::from(codes[index]) << (index * BITS));
        bytes.copy_from_slice(&stream.to_le_bytes()[..BITS]);
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use mlxcel_models::packing::decode_row;

    /// What `fixtures/quantize/make_vectors.py` had MLX compute.
    #[derive(Deserialize)]
    struct Vector {
        mode: String,
        bits: usize,
        group_size: usize,
        source: String,
        values: String,
        codes: String,
        scales: String,
        #[serde(default)]
        biases: String,
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2);
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn every_mode_packs_as_mlx_does() {
        let vectors: Vec<Vector> =
            serde_json::from_str(include_str!("../../fixtures/quantize/vectors.json")).unwrap();
        for vector in vectors {
            let Vector { bits, group_size, .. } = vector;
            let mode = Mode::ALL.into_iter().find(|mode| mode.name() == vector.mode).unwrap();
            let source = match vector.source.as_str() {
                "float32" => Float::F32,
                "float16" => Float::F16,
                _ => Float::BF16,
            };
            let what = format!("{mode} {bits}/{group_size} of {source:?}");
            let codec = Codec { scheme: Scheme { mode, bits, group_size }, source, scales: source };
            let stored = bytes(&vector.values);
            let mut values = vec![0.0; stored.len() / source.bytes()];
            source.read(&stored, &mut values);
            let mut codes = vec![0; codec.code_bytes(values.len())];
            let mut scales = vec![0; codec.scale_bytes(values.len())];
            let mut biases = vec![0; if codec.has_biases() { scales.len() } else { 0 }];
            let deviation = codec.pack(&values, &mut codes, &mut scales, &mut biases).unwrap();
            assert_eq!(scales, bytes(&vector.scales), "scales of {what}");
            assert_eq!(codes, bytes(&vector.codes), "codes of {what}");
            assert_eq!(biases, bytes(&vector.biases), "biases of {what}");

            let parts: [&[u8]; 3] = [&codes, &scales, &biases];
            let mut packed = vec![0.0; values.len()];
            decode_row(&codec.packing(), &parts[..codec.packing().parts().count()], &mut packed).unwrap();
            let largest =
                values.iter().zip(&packed).map(|(value, packed)| (value - packed).abs()).fold(0.0, f32::max);
            assert_eq!(deviation.largest(), largest, "{what}");
            assert!(deviation.relative_rms() < 1.0, "{what}: {deviation:?}");
        }
    }
}
