//! Norms on the device, against double precision.

use mlxcel_core::Precision;
use mlxcel_graph::layers;
use mlxcel_graph::packed::{PackedWeight, packed_linear};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::ElementType::{BF16, F16, F32};
use mlxcel_stablehlo::{ElementType, Module, TensorType};

use super::linear::values;
use super::packed::{Random, example};
use super::{arguments, as_f32, computed, lowered, rounding_to};
use crate::testing::host;

/// Rows, their width, and the type of elements: widths of one vector, of several that are summed side by side
/// or are not, and of vectors that are shorter since rows are no multiple of them.
const NORMS: [(usize, usize, ElementType); 11] = [
    (1, 16, F32),
    (3, 80, F32),
    (40, 2048, F32),
    (2, 8192, F32),
    (5, 64, BF16),
    (1, 2048, BF16),
    (33, 48, F16),
    (1, 16_400, F32),
    (3, 24, F32),
    (2, 36, BF16),
    (5, 7, F16),
];

const EPSILON: f32 = 1e-5;

#[test]
fn norms_scale_rows_by_the_root_of_their_mean_square() {
    let mut types = Vec::new();
    let module = Module::of_function("kernels", "main", |b| {
        let mut results = Vec::new();
        for (i, (rows, width, element)) in NORMS.into_iter().enumerate() {
            let own = [TensorType::new(element, [rows, width]), TensorType::new(F32, [width])];
            let operands = arguments(b, &format!("x{i}"), &own)?;
            types.extend(own);
            results.push(layers::rms_norm(b, operands[0], operands[1], EPSILON)?);
        }
        Ok(results)
    })
    .unwrap();
    let tensors: Vec<Tensor> = types.iter().zip(1..).map(|(ty, seed)| values(ty, seed)).collect();
    let results = computed(&module, &tensors, &host(), Precision::Exact);
    for ((norm, got), given) in NORMS.into_iter().zip(results).zip(tensors.chunks(2)) {
        let (_, width, element) = norm;
        let [x, gains] = [0, 1].map(|at| as_f32(given[at].ty(), given[at].bytes()));
        // The normalized value is rounded to the type of elements, and so is its product with the gain.
        let rounding = 2.0 * rounding_to(element);
        for (row, got) in x.chunks(width).zip(got.chunks(width)) {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let scale = 1.0 / (squares / width as f64 + f64::from(EPSILON)).sqrt();
            for ((&x, &gain), &got) in row.iter().zip(&gains).zip(got) {
                let wanted = f64::from(x) * scale * f64::from(gain);
                let off = (f64::from(got) - wanted).abs();
                assert!(off <= wanted.abs() * (1e-6 + rounding), "{norm:?}: {got} is not {wanted}");
            }
        }
    }
}

#[test]
fn products_of_norms_have_the_bits_of_products_of_stored_norms() {
    let (rows, width) = (3, 192);
    let weight = example("u4/64 bf16 + bf16", &[40], width, &mut Random(7));
    let (x, gains) = (TensorType::new(F32, [rows, width]), TensorType::new(F32, [width]));
    let module = |is_stored: bool| {
        Module::of_function("norms", "main", |b| {
            let rows = b.argument("x", x.clone())?;
            let parts = arguments(b, "p", weight.parts.iter().map(Tensor::ty))?;
            let packed = PackedWeight { packing: weight.packing, parts };
            let normed = if is_stored {
                rows
            } else {
                let gains = b.argument("gains", gains.clone())?;
                layers::rms_norm(b, rows, gains, EPSILON)?
            };
            Ok(vec![normed, packed_linear(b, normed, &packed, None, F32)?])
        })
        .unwrap()
    };
    let mut tensors = vec![values(&x, 1)];
    tensors.extend(weight.parts.iter().cloned());
    tensors.push(values(&gains, 2));
    for precision in [Precision::Exact, Precision::Native, Precision::Fast] {
        let text = lowered(&module(false), &host(), precision).text;
        assert!(text.contains("norm_activations"), "the product's kernel computes the norm:\n{text}");
        let [normed, products] = &computed(&module(false), &tensors, &host(), precision)[..] else {
            unreachable!()
        };
        let mut stored = tensors[..tensors.len() - 1].to_vec();
        let bytes: Vec<u8> = normed.iter().flat_map(|value| value.to_le_bytes()).collect();
        stored[0] = Tensor::from_bytes(x.clone(), &bytes).unwrap();
        assert_eq!(&computed(&module(true), &stored, &host(), precision)[1], products);
    }
}
