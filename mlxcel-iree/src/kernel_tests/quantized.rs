//! The kernels on the device, against sums in double precision of what packed rows decode to.

use half::bf16;
use mlxcel_core::Precision;
use mlxcel_graph::packed::{PackedWeight, packed_embedding, packed_linear};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::ElementType::{F32, I32};
use mlxcel_stablehlo::Module;

use super::packed::{Random, example, floats};
use super::{arguments, computed, lesser, lowered};
use crate::testing::{compiled, host, resolved};

/// A layer over a packed weight: rows, outputs, inputs, packing.
type Layer = (usize, usize, usize, &'static str);

/// Rows from 1 to 16 and many; whole panels, tails and only a tail; every kind and width of codes, for few
/// rows and for many; groups of every size, those that are larger than what is summed at a time included;
/// every kind of scale and offset.
const LAYERS: [Layer; 31] = [
    (1, 73, 192, "u4/64 bf16 + bf16"),
    (1, 7, 64, "u4/64 f16 + f16"),
    (1, 160, 256, "u8/32 f16 + f16"),
    (2, 48, 256, "u4/32 u8*f16/8 - u8*f16/8"),
    (3, 33, 256, "u6-32/16 i8*f16/16"),
    (4, 80, 256, "u8-128/128 f32"),
    (5, 64, 64, "iq4nl/32 f16"),
    (6, 40, 96, "u4/32 f32 - u8*scale"),
    (7, 41, 128, "e2m1/32 e8m0"),
    (8, 64, 256, "u5/32 u8*f16/8 - u8*f16/8"),
    (9, 48, 64, "u4-8/32 f16"),
    (10, 17, 64, "e4m3/32 e8m0"),
    (11, 32, 256, "u3-4/16 i8*f16/16"),
    (12, 16, 64, "e2m1/16 e4m3"),
    (14, 30, 64, "u8/64 bf16 + bf16"),
    (16, 50, 256, "u2/16 u8*f16/16 - u8*f16/16"),
    (1, 33, 256, "u2/128 f32 + f32"),
    (1, 41, 256, "u4/128 f16 - u8*scale"),
    (1, 48, 512, "u4-8/512 bf16"),
    (1, 37, 128, "u5/64 bf16 + bf16"),
    (1, 34, 64, "e5m2/64 f32"),
    (17, 50, 192, "u6/64 bf16 + bf16"),
    (18, 49, 256, "iq4nl/32 i8*f16/8"),
    (20, 34, 256, "u3-4/16 i8*f16/16"),
    (24, 34, 64, "e2m1/32 e8m0"),
    (33, 35, 128, "e5m2/128 f32"),
    (40, 50, 256, "u5-16/32 f16"),
    (65, 40, 64, "u3/32 f16 + bf16"),
    (70, 33, 512, "e4m3/512 bf16"),
    (90, 34, 256, "u4/32 u8*f16/8 - u8*f16/8"),
    (150, 34, 128, "u4/128 f16 - u8*scale"),
];

/// Tables: ids, rows, width, packing.
const TABLES: [Layer; 11] = [
    (1, 73, 192, "u4/64 bf16 + bf16"),
    (5, 40, 64, "u8-128/32 f16"),
    (70, 9, 256, "u4/32 u8*f16/8 - u8*f16/8"),
    (3, 64, 256, "u6-32/16 i8*f16/16"),
    (4, 37, 64, "u2/16 u8*f16/4 - u8*f16/4"),
    (4, 37, 64, "u3-4/16 f16"),
    (4, 37, 64, "u5-16/32 f16"),
    (4, 37, 64, "iq4nl/32 f16"),
    (4, 37, 64, "e2m1/16 e4m3"),
    (4, 37, 64, "e4m3/32 e8m0"),
    (4, 37, 64, "e5m2/64 f32"),
];

/// Activations of which each row has another magnitude, and some are far larger than the others.
fn activations(rows: usize, inputs: usize, random: &mut Random) -> Vec<f32> {
    (0..rows * inputs)
        .map(|i| random.next() * if i % 97 == 5 { 20.0 } else { 1.0 } * (1 + i / inputs) as f32)
        .collect()
}

/// Layers and tables as one program, its arguments, and what it computes.
struct Case {
    module: Module,
    tensors: Vec<Tensor>,
    /// Each layer in double precision, and each table's rows as they are.
    wanted: Vec<Vec<f32>>,
    /// The layers again, of activations that are rounded to bfloat16.
    rounded: Vec<Vec<f32>>,
}

/// `x: [rows, inputs]` times the transpose of `weight: [outputs, inputs]`, plus `bias`, in double precision.
fn products(x: &[f32], weight: &[f32], inputs: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
    let bias = |output: usize| bias.map_or(0.0, |bias| f64::from(bias[output]));
    let rows = x.chunks_exact(inputs).map(|x| {
        weight.chunks_exact(inputs).enumerate().map(move |(output, w)| (dot(x, w) + bias(output)) as f32)
    });
    rows.flatten().collect()
}

fn case(layers: &[Layer], tables: &[Layer]) -> Case {
    let mut random = Random(77);
    let (mut tensors, mut wanted, mut rounded) = (Vec::new(), Vec::new(), Vec::new());
    let module = Module::of_function("packed", "main", |b| {
        let mut results = Vec::new();
        for (i, &(rows, outputs, inputs, packing)) in layers.iter().enumerate() {
            let weight = example(packing, &[outputs], inputs, &mut random);
            let x = activations(rows, inputs, &mut random);
            // Every third has a bias.
            let bias: Vec<f32> = (0..outputs).map(|_| random.next()).collect();
            let bias = (i % 3 == 0).then_some(bias);
            wanted.push(products(&x, &weight.values, inputs, bias.as_deref()));
            let narrow: Vec<f32> = x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
            rounded.push(products(&narrow, &weight.values, inputs, bias.as_deref()));
            let given: Vec<Tensor> = [floats(F32, &[rows, inputs], &x)]
                .into_iter()
                .chain(weight.parts)
                .chain(bias.as_ref().map(|bias| floats(F32, &[outputs], bias)))
                .collect();
            let mut values = arguments(b, &format!("l{i}"), given.iter().map(Tensor::ty))?;
            let bias = bias.and_then(|_| values.pop());
            let weight = PackedWeight { packing: weight.packing, parts: values[1..].to_vec() };
            results.push(packed_linear(b, values[0], &weight, bias, F32)?);
            tensors.extend(given);
        }
        for (i, &(count, rows, width, packing)) in tables.iter().enumerate() {
            let table = example(packing, &[rows], width, &mut random);
            // Some ids are beyond the table.
            let ids: Vec<i32> = (0..count).map(|_| (random.word() % (rows as u64 + 6)) as i32 - 3).collect();
            let row = |id: i32| usize::try_from(id).unwrap_or(0).min(rows - 1);
            wanted.push(
                ids.iter().flat_map(|&id| &table.values[row(id) * width..][..width]).copied().collect(),
            );
            let ids = Tensor::from_slice([count], &ids).unwrap();
            let given: Vec<Tensor> = [ids].into_iter().chain(table.parts).collect();
            let values = arguments(b, &format!("t{i}"), given.iter().map(Tensor::ty))?;
            let table = PackedWeight { packing: table.packing, parts: values[1..].to_vec() };
            results.push(packed_embedding(b, &table, values[0])?);
            tensors.extend(given);
        }
        Ok(results)
    })
    .unwrap();
    Case { module, tensors, wanted, rounded }
}

/// The largest difference, relative to the largest value.
fn largest_error(got: &[f32], wanted: &[f32]) -> f32 {
    let scale = wanted.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    assert!(got.iter().all(|value| value.is_finite()));
    got.iter().zip(wanted).fold(0f32, |largest, (a, b)| largest.max((a - b).abs())) / scale
}

/// The root of the mean square of differences.
fn mean_error(got: &[f32], wanted: &[f32]) -> f64 {
    let squares: f64 = got.iter().zip(wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (squares / got.len() as f64).sqrt()
}

#[test]
fn exact_kernels_match_the_decomposition() {
    let case = case(&LAYERS, &TABLES);
    for target in std::iter::once(host()).chain(lesser()) {
        for (i, (got, wanted)) in computed(&case.module, &case.tensors, &target, Precision::Exact)
            .iter()
            .zip(&case.wanted)
            .enumerate()
        {
            let error = largest_error(got, wanted);
            assert!(error <= 1e-5, "{target}, {:?}: {error}", LAYERS.iter().chain(&TABLES).nth(i));
        }
    }
}

/// That rows of tables are exact.
fn check_tables(case: &Case, got: &[Vec<f32>]) {
    for (i, (got, wanted)) in got.iter().zip(&case.wanted).enumerate().skip(LAYERS.len()) {
        let error = largest_error(got, wanted);
        assert!(error <= 1e-6, "rows of tables are exact at every precision, {i}: {error}");
    }
}

#[test]
fn fixed_point_errs_less_than_rounding_activations_to_bfloat16() {
    let case = case(&LAYERS, &TABLES);
    let native = computed(&case.module, &case.tensors, &host(), Precision::Native);
    for (i, layer) in LAYERS.iter().enumerate() {
        let wanted = &case.wanted[i];
        let bfloat16 = mean_error(&case.rounded[i], wanted);
        let fixed = mean_error(&native[i], wanted);
        assert!(fixed <= bfloat16 / 4.0, "{layer:?}: {fixed} in fixed point, {bfloat16} in bfloat16");
    }
    check_tables(&case, &native);
}

#[test]
fn nan_codes_give_nan_results() {
    const PACKING: &str = "e4m3/64 f32";
    let layers = [(1, 20, 64, PACKING), (40, 20, 64, PACKING)];
    let tables = [(20, 20, 64, PACKING)];
    let mut case = case(&layers, &tables);
    // In a panel and in the rows behind the panels, of either sign.
    let broken = [3, 18];
    let codes = case.tensors.iter_mut().filter(|tensor| tensor.ty().shape == [20, 16]);
    for tensor in codes {
        let mut bytes = tensor.bytes().to_vec();
        bytes[broken[0] * 64 + 5] = 0x7f;
        bytes[broken[1] * 64 + 12] = 0xff;
        *tensor = Tensor::from_bytes(tensor.ty().clone(), &bytes).unwrap();
    }
    let ids = case.tensors.iter_mut().find(|tensor| tensor.ty().element == I32).unwrap();
    *ids = Tensor::from_slice([20], &(0..20).collect::<Vec<i32>>()).unwrap();
    for precision in [Precision::Exact, Precision::Native] {
        let results = computed(&case.module, &case.tensors, &host(), precision);
        for result in &results[..2] {
            for (i, value) in result.iter().enumerate() {
                assert_eq!(value.is_nan(), broken.contains(&(i % 20)), "{precision:?}, output {i}");
            }
        }
        for (row, values) in results[2].chunks(64).enumerate() {
            let none = values.iter().filter(|value| value.is_nan()).count();
            assert_eq!(none, usize::from(broken.contains(&row)), "{precision:?}, row {row}");
        }
    }
}

/// What takes another run of the compiler over all layers, or is not run.
mod nightly {
    use super::*;

    #[test]
    fn activations_of_eight_bits_stay_within_their_rounding() {
        let case = case(&LAYERS, &TABLES);
        let fast = computed(&case.module, &case.tensors, &host(), Precision::Fast);
        for (i, layer) in LAYERS.iter().enumerate() {
            let error = largest_error(&fast[i], &case.wanted[i]);
            assert!(error <= 8e-2, "{layer:?}: {error} with activations of 8 bits");
        }
        check_tables(&case, &fast);
    }

    #[test]
    fn kernels_compile_for_other_processors() {
        // Each kind of code, for few rows and for many.
        let layers = [1, 3, 4, 6, 8, 11, 12, 13, 15, 17, 20, 22, 27].map(|layer| LAYERS[layer]);
        let case = case(&layers, &TABLES[4..7]);
        for target in ["llvm-cpu:alderlake", "llvm-cpu:apple-m1"] {
            let target = resolved(target);
            let artifact = compiled(&lowered(&case.module, &target, Precision::Native).text, &target);
            assert!(!artifact.is_empty());
        }
    }
}
