//! The kernels on the device, against what they replace: sums in double precision, and the evaluator's
//! copies.

use mlxcel_core::Precision;
use mlxcel_graph::layers;
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::ElementType::{BF16, F16, F32, I32};
use mlxcel_stablehlo::{ElementType, Module, TensorType};

use super::packed::floats;
use super::{arguments, as_f32, computed, evaluated, lesser, rounding_to, schedules_of};
use crate::testing::host;

/// A linear layer: rows, outputs, inputs, and the element types of operand, weight and result.
type Layer = (usize, usize, usize, ElementType, ElementType, ElementType);

/// Every count of rows that a weight streams past, and several that are computed in blocks: whole tiles and
/// odd ones, one chunk and two; panels in pairs, single, and none; outputs behind the last panel; inputs that
/// fill blocks and pairs, and do not.
const LAYERS: [Layer; 44] = [
    (1, 729, 192, F32, BF16, F32),
    (1, 256, 512, BF16, BF16, BF16),
    (1, 3, 4, F32, F32, F32),
    (1, 64, 1, F32, BF16, F32),
    (1, 33, 127, F32, F16, F32),
    (1, 2048, 35, F32, F32, F32),
    (1, 4096, 34, F32, BF16, F32),
    (1, 16, 257, F32, F32, F32),
    (2, 10, 20, F32, F16, F32),
    (3, 64, 36, F16, F16, F16),
    (3, 2048, 37, F32, BF16, F32),
    (4, 128, 64, F32, BF16, F32),
    (5, 7, 8, F32, BF16, BF16),
    (6, 1, 2048, F32, F32, F32),
    (7, 30, 100, F32, F32, F32),
    (7, 1024, 31, BF16, BF16, F32),
    (8, 33, 64, BF16, BF16, F32),
    (8, 2048, 66, F32, BF16, F32),
    (9, 50, 11, F32, F16, F32),
    (10, 64, 130, F32, F32, F32),
    (11, 17, 3, F32, BF16, F32),
    (12, 2, 16, F32, BF16, F32),
    (12, 2048, 24, F32, F32, F32),
    (13, 48, 300, F32, BF16, F32),
    (14, 20, 1, F32, F32, F32),
    (15, 512, 129, F32, F16, F32),
    (16, 513, 48, F32, BF16, F32),
    (16, 1024, 256, F32, BF16, F32),
    (17, 48, 257, F32, BF16, F32),
    (17, 1040, 130, BF16, BF16, F32),
    (20, 64, 132, BF16, BF16, F32),
    (25, 16, 129, F32, F32, F32),
    (29, 5, 7, F32, BF16, F32),
    (31, 36, 1, F32, BF16, F32),
    (33, 70, 383, F16, F16, F32),
    (37, 1024, 260, BF16, BF16, BF16),
    (64, 96, 384, F32, F32, F32),
    (100, 2048, 64, F32, BF16, F32),
    (128, 144, 320, F32, BF16, F32),
    (133, 40, 65, F32, F16, F32),
    (135, 40, 64, BF16, BF16, F32),
    (150, 2080, 33, F32, BF16, F32),
    (160, 4, 384, BF16, BF16, F32),
    (300, 19, 130, F32, F32, F32),
];

/// Lookups: tokens, rows and width of the table, and its type.
const LOOKUPS: [(usize, usize, usize, ElementType); 5] =
    [(1, 64, 48, BF16), (5, 37, 33, BF16), (7, 729, 20, F32), (16, 5, 7, F16), (3, 40, 1, BF16)];

/// Numbers without a pattern, between -1 and 1. They have all the bits of a float32, so those that are not
/// stored in a half type show it where they are rounded to one.
pub(super) fn values(ty: &TensorType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f32> = (0..ty.elements())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 39) as f32 / (1 << 24) as f32 - 1.0
        })
        .collect();
    match ty.element {
        // Ids, some of which are beyond any table.
        I32 => {
            let ids: Vec<_> = values.iter().map(|&value| (value * 800.0) as i32).collect();
            Tensor::from_slice(ty.shape.clone(), &ids).unwrap()
        }
        element => floats(element, &ty.shape, &values),
    }
}

/// By how much a sum of `terms` float32 products may be off whose squares add up to the square of `size`:
/// roundings of as many partial sums, each about as large as the sum of this many terms of either sign, in
/// any order.
pub(super) fn rounding(terms: usize, size: f64) -> f64 {
    f64::from(f32::EPSILON) * (4.0 + 2.0 * (terms as f64).sqrt()) * size
}

/// Holds a linear layer to sums in double precision, rounded once to its result's type.
fn check_sums(layer: &Layer, [x, w, bias]: [&[f32]; 3], biased: bool, got: &[f32], target: &ResolvedTarget) {
    let &(rows, outputs, inputs, _, _, out) = layer;
    assert_eq!(got.len(), rows * outputs);
    for (i, &got) in got.iter().enumerate() {
        let (row, output) = (i / outputs, i % outputs);
        let bias = if biased { f64::from(bias[output]) } else { 0.0 };
        let (mut sum, mut squares) = (bias, bias * bias);
        for (x, w) in x[row * inputs..][..inputs].iter().zip(&w[output * inputs..][..inputs]) {
            let term = f64::from(*x) * f64::from(*w);
            sum += term;
            squares += term * term;
        }
        let rounded = sum.abs() * rounding_to(out).max(f64::from(f32::EPSILON));
        let tolerance = rounding(inputs + 1, squares.sqrt().max(sum.abs())) + rounded;
        let off = (f64::from(got) - sum).abs();
        assert!(off <= tolerance, "{target}, {layer:?} at {i}: {got} is not {sum}, by {off} of {tolerance}");
    }
}

fn check_linear_layers(target: &ResolvedTarget, layers: &[Layer]) {
    let mut types = Vec::new();
    // Every third has a bias.
    let biased = |i: usize| i.is_multiple_of(3);
    let module = Module::of_function("kernels", "main", |b| {
        let mut results = Vec::new();
        for (i, &layer) in layers.iter().enumerate() {
            let (rows, outputs, inputs, x, weight, out) = layer;
            let own = [
                TensorType::new(x, [rows, inputs]),
                TensorType::new(weight, [outputs, inputs]),
                TensorType::new(weight, [outputs]),
            ];
            let operands = arguments(b, &format!("x{i}"), &own)?;
            types.extend(own);
            let bias = biased(i).then_some(operands[2]);
            results.push(layers::linear(b, operands[0], operands[1], bias, out)?);
        }
        Ok(results)
    })
    .unwrap();
    let tensors: Vec<Tensor> = types.iter().zip(1..).map(|(ty, seed)| values(ty, seed)).collect();
    let numbers: Vec<_> = tensors.iter().map(|tensor| as_f32(tensor.ty(), tensor.bytes())).collect();
    for (i, got) in computed(&module, &tensors, target, Precision::Exact).into_iter().enumerate() {
        let [x, w, bias] = [0, 1, 2].map(|part| &numbers[3 * i + part][..]);
        check_sums(&layers[i], [x, w, bias], biased(i), &got, target);
    }
}

#[test]
fn linear_kernels_match_a_plain_matrix_product() {
    let [first, second] = schedules_of(&host());
    check_linear_layers(&first, &LAYERS);
    // Schedules differ in how bfloat16 is multiplied with bfloat16.
    let halves = LAYERS.into_iter().filter(|(_, _, _, x, weight, _)| (*x, *weight) == (BF16, BF16));
    check_linear_layers(&second, &halves.collect::<Vec<_>>());
}

#[test]
fn linear_kernels_give_the_same_result_on_lesser_processors() {
    if let Some(lesser) = lesser() {
        check_linear_layers(&lesser, &LAYERS);
    }
}

#[test]
fn embedding_lookups_read_packed_panels_and_remainder_rows() {
    let mut types = Vec::new();
    let module = Module::of_function("kernels", "main", |b| {
        let mut results = Vec::new();
        for (i, lookup) in LOOKUPS.into_iter().enumerate() {
            let (tokens, rows, width, element) = lookup;
            let own = [TensorType::new(element, [rows, width]), TensorType::new(I32, [tokens])];
            let operands = arguments(b, &format!("x{i}"), &own)?;
            types.extend(own);
            results.push(layers::embedding(b, operands[0], operands[1])?);
        }
        Ok(results)
    })
    .unwrap();
    let tensors: Vec<_> = types.iter().zip(1..).map(|(ty, seed)| values(ty, seed)).collect();
    let wanted: Vec<_> =
        evaluated(&module, &tensors).iter().map(|wanted| as_f32(wanted.ty(), wanted.bytes())).collect();
    assert_eq!(computed(&module, &tensors, &host(), Precision::Exact), wanted);
}
