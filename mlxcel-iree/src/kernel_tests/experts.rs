//! The kernels of experts on the device, against sums in double precision.

use mlxcel_core::Precision;
use mlxcel_graph::layers;
use mlxcel_graph::packed::{PackedWeight, operand_parts, packed_expert_linear};
use mlxcel_iree_kernels::Layouts;
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::ElementType::{BF16, F16, F32};
use mlxcel_stablehlo::{Attribute, ElementType, Module, TensorType};

use super::linear::rounding;
use super::packed::{Random, example, floats};
use super::{arguments, as_f32, computed, evaluated, floats_of, lesser, lower, lowered, run};
use crate::testing::{compiled, host, resolved};

/// The experts of each layer's blocks, out of four: one twice, one not at all, empty blocks, and one beyond
/// the last.
const CHOSEN: [i32; 6] = [2, -1, 0, 2, 3, -9];
const EXPERTS: usize = 4;

/// A layer: rows of a block, outputs, inputs, the type of activations, and how its weight is stored; whether
/// all blocks have the rows of one, and whether there is a bias.
type Layer = (usize, usize, usize, ElementType, Stored, bool, bool);

#[derive(Clone, Copy, Debug)]
enum Stored {
    Dense(ElementType),
    /// The text of a packing.
    Packed(&'static str),
}
use Stored::{Dense, Packed};

/// Few rows and more than registers hold, whole panels, outputs behind them and nothing else; a last step of
/// one input.
const LAYERS: [Layer; 17] = [
    (1, 64, 96, F32, Dense(BF16), true, false),
    (1, 37, 34, F32, Dense(F32), false, true),
    (3, 48, 35, BF16, Dense(F16), false, false),
    (4, 50, 64, BF16, Dense(BF16), true, true),
    (16, 34, 66, F32, Dense(BF16), false, false),
    (16, 32, 64, BF16, Dense(BF16), false, true),
    (30, 40, 33, F32, Dense(F32), false, false),
    (1, 80, 128, F32, Packed("u4/64 bf16 + bf16"), true, false),
    (1, 7, 64, F32, Packed("u8-128/32 f16"), false, true),
    (2, 33, 192, BF16, Packed("u4/32 f32 + f32"), false, false),
    (4, 48, 64, F32, Packed("e2m1/32 e8m0"), true, true),
    (16, 50, 256, F32, Packed("u6-32/16 i8*f16/16"), false, true),
    (70, 34, 64, F32, Packed("e2m1/32 e8m0"), false, false),
    (1, 34, 256, F32, Packed("u4/32 u8*f16/8 - u8*f16/8"), true, false),
    (2, 33, 64, F32, Packed("u3/32 f16 + f16"), false, false),
    (1, 20, 64, F32, Packed("e4m3/64 f32"), false, false),
    (3, 40, 64, F32, Packed("iq4nl/32 f16"), true, false),
];

/// Floats without a pattern.
fn random_floats(random: &mut Random, element: ElementType, shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.next()).collect();
    floats(element, shape, &values)
}

/// A program, its arguments, and what the elements of each layer's weight decode to.
struct Case {
    module: Module,
    given: Vec<Tensor>,
    weights: Vec<Vec<f64>>,
}

fn program(layers: &[Layer]) -> Case {
    let mut random = Random(77);
    let mut given = vec![Tensor::from_slice([CHOSEN.len()], &CHOSEN).unwrap()];
    let mut weights = Vec::new();
    let module = Module::of_function("experts", "main", |b| {
        let experts = b.argument("experts", given[0].ty().clone())?;
        let mut results = Vec::new();
        for (i, &(rows, outputs, inputs, element, stored, shared, biased)) in layers.iter().enumerate() {
            let first = given.len();
            let blocks = if shared { 1 } else { CHOSEN.len() };
            given.push(random_floats(&mut random, element, &[blocks, rows, inputs]));
            given.push(random_floats(&mut random, BF16, &[EXPERTS, outputs]));
            match stored {
                Dense(element) => {
                    let weight = random_floats(&mut random, element, &[EXPERTS, outputs, inputs]);
                    weights.push(numbers(&weight));
                    given.push(weight);
                }
                Packed(packing) => {
                    let weight = example(packing, &[EXPERTS, outputs], inputs, &mut random);
                    weights.push(weight.values.into_iter().map(f64::from).collect());
                    given.extend(weight.parts);
                }
            }
            let values = arguments(b, &format!("l{i}"), given[first..].iter().map(Tensor::ty))?;
            let bias = biased.then_some(values[1]);
            results.push(match stored {
                Dense(_) => layers::expert_linear(b, values[0], values[2], experts, bias, F32)?,
                Packed(packing) => {
                    let packing = packing.parse().unwrap();
                    let weight = PackedWeight { packing, parts: values[2..].to_vec() };
                    packed_expert_linear(b, values[0], &weight, experts, bias, F32)?
                }
            });
        }
        Ok(results)
    })
    .unwrap();
    Case { module, given, weights }
}

/// The elements of a tensor of floats.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    as_f32(tensor.ty(), tensor.bytes()).into_iter().map(f64::from).collect()
}

/// What each layer is in double precision, an element and the root of the sum of its terms' squares.
fn sums(Case { given, weights, .. }: &Case) -> Vec<Vec<(f64, f64)>> {
    let mut parts = &given[1..];
    let layer = |(&(rows, outputs, inputs, _, stored, shared, biased), w): (&Layer, &Vec<f64>)| {
        let count = match stored {
            Dense(_) => 1,
            Packed(packing) => operand_parts(&packing.parse().unwrap()).count(),
        };
        let (own, rest) = parts.split_at(2 + count);
        parts = rest;
        let (x, bias) = (numbers(&own[0]), numbers(&own[1]));
        let element = |at: usize| {
            let (block, row, output) = (at / (rows * outputs), at / outputs % rows, at % outputs);
            let expert = usize::try_from(CHOSEN[block]).ok().filter(|&expert| expert < EXPERTS);
            let Some(expert) = expert else { return (0.0, 0.0) };
            let x = &x[(if shared { 0 } else { block } * rows + row) * inputs..][..inputs];
            let w = &w[(expert * outputs + output) * inputs..][..inputs];
            // A packed value is the sum of two, each as large as the largest of its row at most.
            let largest = w.iter().fold(0f64, |largest, w| largest.max(w.abs()));
            let square = |w: f64| if count == 1 { w * w } else { 2.0 * largest * largest };
            let bias = if biased { bias[expert * outputs + output] } else { 0.0 };
            let sum = bias + x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
            let squares = bias * bias + x.iter().zip(w).map(|(x, &w)| x * x * square(w)).sum::<f64>();
            (sum, squares.sqrt().max(sum.abs()))
        };
        (0..CHOSEN.len() * rows * outputs).map(element).collect()
    };
    LAYERS.iter().zip(weights).map(layer).collect()
}

/// Compares results with expectations, and empty blocks with zeros. Besides rounding, elements of packed
/// layers may be off by `packed` of their terms.
fn check(got: &[Vec<f32>], wanted: &[Vec<(f64, f64)>], packed: f64, described: &str) {
    for ((layer, got), wanted) in LAYERS.iter().zip(got).zip(wanted) {
        assert_eq!(got.len(), wanted.len(), "{layer:?}");
        let packed = if matches!(layer.4, Packed(..)) { packed } else { 0.0 };
        for (at, (&got, &(sum, size))) in got.iter().zip(wanted).enumerate() {
            let tolerance = rounding(2 * layer.2 + 1, size) + packed * size;
            let off = (f64::from(got) - sum).abs();
            assert!(
                off <= tolerance,
                "{described}: {layer:?} at {at}: {got} is not {sum}, by {off} of {tolerance}"
            );
        }
        let block = got.len() / CHOSEN.len();
        let empty = (0..CHOSEN.len()).filter(|&block| CHOSEN[block] < 0);
        assert!(
            empty.flat_map(|number| &got[number * block..][..block]).all(|&value| value == 0.0),
            "{layer:?}"
        );
    }
}

#[test]
fn blocks_use_the_matrices_of_their_experts() {
    let case = program(&LAYERS);
    let wanted = sums(&case);
    for target in std::iter::once(host()).chain(lesser()) {
        let got = computed(&case.module, &case.given, &target, Precision::Exact);
        check(&got, &wanted, 0.0, &format!("exact, {target}"));
    }
    let native = computed(&case.module, &case.given, &host(), Precision::Native);
    // Activations in 16-bit fixed point differ by 2^-16 of their group's largest at most, which is about
    // twice what they are.
    check(&native, &wanted, 8.0 / f64::from(1 << 16), "native");
}

#[test]
fn tokens_are_grouped_by_expert_as_in_the_evaluator() {
    let (tokens, choices, experts) = (21, 3, 10);
    let module = Module::of_function("routing", "main", |b| {
        let scores = b.argument("scores", TensorType::new(F32, [tokens, experts]))?;
        let (values, ids) = layers::top_k(b, scores, choices)?;
        let groups = layers::group_by_expert(b, ids, experts, 4)?;
        let valid = b.convert(groups.valid, ElementType::I32)?;
        let numbers = [ids, groups.experts, groups.pairs, valid, groups.slots];
        let mut results = vec![values];
        for value in numbers {
            results.push(b.convert(value, F32)?);
        }
        Ok(results)
    })
    .unwrap();
    let given = [random_floats(&mut Random(5), F32, &[tokens, experts])];
    let wanted = evaluated(&module, &given);
    let wanted: Vec<_> = wanted.iter().map(|wanted| wanted.as_slice::<f32>().unwrap().to_vec()).collect();
    let text = lower(&module, &host(), Precision::Exact).unwrap();
    let got = run(&module, &compiled(&text, &host()), &given, &Layouts::default());
    assert_eq!(floats_of(&got), wanted);
}

#[test]
fn unsupported_composites_keep_their_decomposition() {
    let composite = |attribute: &str, stored: bool| {
        let module = Module::of_function("experts", "main", |b| {
            let x = b.argument("x", TensorType::new(F32, [1, 1, 64]))?;
            let mut weight = b.argument("w", TensorType::new(F32, [EXPERTS, 32, 64]))?;
            let experts = b.argument("experts", TensorType::new(ElementType::I32, [1]))?;
            if !stored {
                weight = b.add(weight, weight)?;
            }
            let attributes = [(attribute.to_owned(), Attribute::Int(1))];
            let attributes = if attribute.is_empty() { &[][..] } else { &attributes };
            let name = mlxcel_graph::composites::EXPERT_LINEAR;
            b.composite(name, &[x, weight, experts], attributes, |b, args| {
                let chosen = b.reshape(args[1], &[EXPERTS, 32 * 64])?;
                let chosen = b.take(chosen, args[2])?;
                let chosen = b.reshape(chosen, &[32, 64])?;
                Ok(vec![layers::linear(b, args[0], chosen, None, F32)?])
            })
        })
        .unwrap();
        lower(&module, &resolved("llvm-cpu:x86-64-v3"), Precision::Exact)
    };
    assert!(composite("", true).unwrap().contains("@mlxcel_expert_linear_f32_1x64x32_0"));
    assert!(composite("", false).unwrap().contains("stablehlo.composite"), "a computed weight has no panels");
    assert!(composite("transposed", true).unwrap().contains("stablehlo.composite"));
}

/// Nothing of it is run.
mod nightly {
    use super::*;

    #[test]
    fn kernels_compile_for_other_processors() {
        let Case { module, .. } = program(&[LAYERS[0], LAYERS[5], LAYERS[10], LAYERS[11]]);
        for target in ["llvm-cpu:alderlake", "llvm-cpu:apple-m1"] {
            let target = resolved(target);
            assert!(!compiled(&lowered(&module, &target, Precision::Native).text, &target).is_empty());
        }
    }
}
