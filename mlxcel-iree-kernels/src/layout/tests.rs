//! Weights in panels, value by value.

use super::*;

/// A linear congruential generator (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Value `bits` wide at `index` of a row, the first in the lowest bits of the first byte.
fn value(row: &[u8], index: usize, bits: usize) -> u32 {
    let byte = |at: usize| u32::from(row[at]);
    match bits {
        2..8 => {
            let (first, shift) = (index * bits / 8, index * bits % 8);
            let above = if shift + bits > 8 { byte(first + 1) } else { 0 };
            (byte(first) | above << 8) >> shift & ((1 << bits) - 1)
        }
        8 => byte(index),
        16 => byte(2 * index) | byte(2 * index + 1) << 8,
        _ => (0..4).map(|i| byte(4 * index + i) << (8 * i)).sum(),
    }
}

/// The value at `[output, input]` of a matrix in `layout`, by the documentation of layouts.
fn value_in_panels(
    bytes: &[u8],
    layout: WeightLayout,
    bits: usize,
    shape: [usize; 2],
    at: [usize; 2],
) -> u32 {
    let ([outputs, inputs], [output, input]) = (shape, at);
    let WeightLayout::Panels { lanes, depth } = layout else { panic!("{layout:?}") };
    let (panel, lane) = (output / lanes, output % lanes);
    if panel == outputs / lanes {
        return value(&bytes[output * inputs * bits / 8..], input, bits);
    }
    let depth_here = if input / depth == inputs / depth { inputs % depth } else { depth };
    let lane_at = panel * lanes * inputs + input / depth * depth * lanes + lane * depth_here;
    if bits < 8 {
        let planes = Planes::of(bits).unwrap();
        let unit = panel * lanes * inputs * bits / 8 + input / depth * planes.words() * lanes * 4;
        let word = |word: usize| value(&bytes[unit..], word * lanes + lane, 32);
        let (low, bit) = planes.low_bit(input % depth);
        let low = word(low) >> bit & ((1 << planes.low) - 1);
        let high = word(planes.words() - 1) >> planes.high_bit(input % depth) & ((1 << planes.high) - 1);
        return low | high << planes.low;
    }
    value(&bytes[lane_at * bits / 8..], input % depth, bits)
}

fn check(
    contents: TensorRole,
    bits: usize,
    lanes: usize,
    [outputs, inputs]: [usize; 2],
    random: &mut Random,
) {
    let row_bytes = inputs * bits / 8;
    let stored = match contents {
        TensorRole::QuantizedWords { .. } | TensorRole::QuantizedFloats => [outputs, row_bytes / 4],
        _ => [outputs, inputs],
    };
    let layout = WeightLayout::of(contents, &stored, Some(lanes));
    // Sources need not be aligned.
    let shift = random.below(3);
    let source: Vec<u8> = (0..shift + outputs * row_bytes).map(|_| random.below(256) as u8).collect();
    let source = &source[shift..];
    let packer = Packer::new(layout, contents, row_bytes).unwrap();
    let mut packed = vec![0; source.len()];
    // In two pieces, as loaders pack.
    let half = outputs / lanes / 2 * packer.panel_bytes();
    packer.pack(&source[half..], &mut packed[half..]);
    packer.pack(&source[..half], &mut packed[..half]);
    for output in 0..outputs {
        for input in 0..inputs {
            let stored = value(&source[output * row_bytes..], input, bits);
            let found = value_in_panels(&packed, layout, bits, [outputs, inputs], [output, input]);
            assert_eq!(stored, found, "{contents:?} {layout:?} [{output}, {input}]");
        }
    }
}

const KINDS: [(TensorRole, usize, usize); 15] = [
    (TensorRole::Dense(ElementType::F32), 32, 1),
    (TensorRole::Dense(ElementType::F16), 16, 1),
    (TensorRole::Dense(ElementType::BF16), 16, 1),
    (TensorRole::QuantizedWords { bits: 8 }, 8, 4),
    (TensorRole::QuantizedFloats, 8, 4),
    (TensorRole::QuantizedWords { bits: 4 }, 4, 8),
    (TensorRole::QuantizedWords { bits: 2 }, 2, 16),
    (TensorRole::QuantizedWords { bits: 3 }, 3, 32),
    (TensorRole::QuantizedWords { bits: 5 }, 5, 32),
    (TensorRole::QuantizedWords { bits: 6 }, 6, 16),
    (TensorRole::GroupParameters(ElementType::U8), 8, 1),
    (TensorRole::GroupParameters(ElementType::I8), 8, 1),
    (TensorRole::GroupParameters(ElementType::F32), 32, 1),
    (TensorRole::GroupParameters(ElementType::F16), 16, 1),
    (TensorRole::GroupParameters(ElementType::BF16), 16, 1),
];

#[test]
fn every_value_is_where_the_layout_places_it() {
    let mut random = Random(7);
    for _ in 0..400 {
        let (contents, bits, step) = KINDS[random.below(KINDS.len())];
        let lanes = LANES[random.below(LANES.len())];
        let shape = [random.below(70), random.below(90) * step];
        check(contents, bits, lanes, shape, &mut random);
    }
}

#[test]
fn long_rows_are_packed_in_blocks() {
    for (contents, bits, step) in KINDS {
        for lanes in LANES {
            check(contents, bits, lanes, [2 * lanes + 3, 264 * step], &mut Random(11));
            check(contents, bits, lanes, [lanes, 256 * step], &mut Random(13));
        }
    }
}

#[test]
fn layouts_are_chosen_by_what_kernels_read() {
    let of = |contents, shape: &[usize], lanes| WeightLayout::of(contents, shape, lanes);
    let bf16 = TensorRole::Dense(ElementType::BF16);
    assert_eq!(of(bf16, &[96, 64], Some(16)), WeightLayout::Panels { lanes: 16, depth: 2 });
    assert_eq!(of(TensorRole::GroupParameters(ElementType::BF16), &[96, 1], Some(8)), {
        WeightLayout::Panels { lanes: 8, depth: 1 }
    });
    assert_eq!(of(TensorRole::QuantizedWords { bits: 4 }, &[96, 8], Some(4)), {
        WeightLayout::Panels { lanes: 4, depth: 8 }
    });
    for rows in [
        of(bf16, &[96, 64], None),
        of(bf16, &[96], Some(16)),
        of(bf16, &[96, 64], Some(5)),
        of(TensorRole::QuantizedWords { bits: 7 }, &[96, 14], Some(16)),
        of(TensorRole::Dense(ElementType::U8), &[96, 12], Some(16)),
    ] {
        assert_eq!(rows, WeightLayout::Rows);
    }
}
