//! Packed weights for tests: their parts, and the values that these decode to.

use half::{bf16, f16};
use mlxcel_graph::packed::{operand_parts, part_element};
use mlxcel_models::packing::{Scale, decode_row};
use mlxcel_models::{Packing, Part};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, TensorType};

use ElementType::{BF16, F16, F32, U32};

/// Numbers without a pattern.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// Between -1 and 1; no narrow type holds most of them exactly.
    pub(super) fn next(&mut self) -> f32 {
        (self.word() % 200_003) as f32 / 100_001.0 - 1.0
    }
}

/// A tensor of floats.
pub(super) fn floats(element: ElementType, shape: &[usize], values: &[f32]) -> Tensor {
    let tensor = match element {
        BF16 => Tensor::from_slice(shape, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
        F16 => Tensor::from_slice(shape, &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
        _ => Tensor::from_slice(shape, values),
    };
    tensor.unwrap()
}

/// The types of the parts of a packed weight.
pub(super) fn part_types(packing: &Packing, outputs: usize, inputs: usize) -> Vec<TensorType> {
    let ty = |part| TensorType::new(part_element(packing, part), [outputs, packing.width(part, inputs)]);
    operand_parts(packing).map(ty).collect()
}

/// A packed weight.
pub(super) struct Example {
    pub(super) packing: Packing,
    pub(super) parts: Vec<Tensor>,
    /// What it decodes to: rows of this many inputs.
    pub(super) values: Vec<f32>,
}

/// A weight `[rows.., inputs]` of any packing, with scales of both magnitudes that real ones have.
pub(super) fn example(packing: &str, rows: &[usize], inputs: usize, random: &mut Random) -> Example {
    let packing: Packing = packing.parse().unwrap();
    let steps = packing.code.numbers(packing.bits).into_iter().filter(|number| number.is_finite());
    let steps = steps.fold(1f32, |largest, number| largest.max(number.abs()));
    let parts: Vec<Tensor> = operand_parts(&packing)
        .map(|part| {
            let shape = [rows, &[packing.width(part, inputs)]].concat();
            let count: usize = shape.iter().product();
            let ty = TensorType::new(part_element(&packing, part), shape.clone());
            let mut bytes =
                |make: &dyn Fn(u64) -> u8| -> Vec<u8> { (0..count).map(|_| make(random.word())).collect() };
            let bytes = match (part, ty.element) {
                // Small floats other than NaN.
                (_, U32) => {
                    (0..count).flat_map(|_| (random.word() as u32 & 0xefef_efef).to_le_bytes()).collect()
                }
                (_, F32 | F16 | BF16) => {
                    // What multiplies bytes is smaller by them, and offsets are as large as what they are
                    // added to.
                    let size = match part {
                        Part::Scales => 1.0 / steps,
                        Part::ScaleFactors => 1.0 / steps / 64.0,
                        Part::OffsetFactors => 1.0 / 64.0,
                        _ => -1.0,
                    };
                    let values: Vec<f32> = (0..count).map(|_| (random.next() + 2.0) * size).collect();
                    return floats(ty.element, &shape, &values);
                }
                (Part::Scales, _) if packing.scale == Scale::E8M0 => bytes(&|word| 120 + (word % 6) as u8),
                (Part::Scales, _) if packing.scale == Scale::E4M3 => bytes(&|word| 0x28 + (word % 32) as u8),
                (_, ElementType::I8) => bytes(&|word| word as u8),
                _ => bytes(&|word| word as u8 & 63),
            };
            Tensor::from_bytes(ty, &bytes).unwrap()
        })
        .collect();
    let count: usize = rows.iter().product();
    let mut values = vec![0.0; count * inputs];
    for (row, values) in values.chunks_exact_mut(inputs).enumerate() {
        let row_of = |part: &Tensor| {
            let bytes = part.bytes().len() / count;
            row * bytes..(row + 1) * bytes
        };
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part.bytes()[row_of(part)]).collect();
        decode_row(&packing, &parts, values).unwrap();
    }
    Example { packing, parts, values }
}
