//! The kernels of experts on the device, against sums in double precision.

use half::{bf16, f16};
use mlxcel_core::Precision;
use mlxcel_graph::packed::{PackedWeight, packed_expert_linear};
use mlxcel_iree_kernels::layout::{Contents, Packer, WeightLayout, matrices};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_stablehlo::ElementType::{BF16, F16, F32};
use mlxcel_stablehlo::eval::{Input, Program as Evaluated, Tensor};
use mlxcel_stablehlo::{Attribute, ElementType, Module, ModuleBuilder, TensorType};

use super::linear::rounding;
use super::quantized::affine;
use super::{lower, weight_lanes};
use crate::ffi::{Argument, Constants, Device, DeviceOptions, Program};
use crate::testing::{host, resolved};
use mlxcel_iree_compile::compiler::{CompileOptions, Compiler};

/// The experts of each layer's blocks, out of four: one twice, one not at all, empty blocks, and one beyond the last.
const CHOSEN: [i32; 6] = [2, -1, 0, 2, 3, -9];
const EXPERTS: usize = 4;

/// A layer: rows of a block, outputs, inputs, the type of activations, and how its weight is stored; whether all blocks have the
/// rows of one, and whether there is a bias.
type Layer = (usize, usize, usize, ElementType, Stored, bool, bool);

#[derive(Clone, Copy, Debug)]
enum Stored {
    Dense(ElementType),
    /// Bits, group size and the type of scales.
    Packed(usize, usize, ElementType),
}
use Stored::{Dense, Packed};

/// Few rows and more than registers hold, whole panels, outputs behind them and nothing else; a last step of one input.
const LAYERS: [Layer; 13] = [
    (1, 64, 96, F32, Dense(BF16), true, false),
    (1, 37, 34, F32, Dense(F32), false, true),
    (3, 48, 35, BF16, Dense(F16), false, false),
    (4, 50, 64, BF16, Dense(BF16), true, true),
    (16, 34, 66, F32, Dense(BF16), false, false),
    (16, 32, 64, BF16, Dense(BF16), false, true),
    (30, 40, 33, F32, Dense(F32), false, false),
    (1, 80, 128, F32, Packed(4, 64, BF16), true, false),
    (1, 7, 64, F32, Packed(8, 32, F16), false, true),
    (2, 33, 192, BF16, Packed(4, 32, F32), false, false),
    (4, 48, 64, F32, Packed(8, 64, BF16), true, true),
    (16, 50, 128, F32, Packed(4, 64, F16), false, true),
    (70, 34, 64, F32, Packed(4, 64, BF16), false, false),
];

/// Numbers without a pattern, between -1 and 1, which no narrow type holds exactly.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn floats(&mut self, element: ElementType, shape: &[usize]) -> Tensor {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_| (self.word() % 200_003) as f32 / 100_001.0 - 1.0).collect();
        let tensor = match element {
            BF16 => Tensor::from_slice(shape, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
            F16 => Tensor::from_slice(shape, &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
            _ => Tensor::from_slice(shape, &values),
        };
        tensor.unwrap()
    }
}

/// An argument of the program, and what a weight has.
struct Given {
    tensor: Tensor,
    contents: Option<Contents>,
}

impl Given {
    fn bytes(&self, lanes: Option<usize>) -> Vec<u8> {
        let ty = self.tensor.ty();
        let mut bytes = self.tensor.bytes().to_vec();
        let Some(contents) = self.contents else { return bytes };
        let row_bytes = ty.element.bytes_for(ty.shape[2]);
        let packer = Packer::new(WeightLayout::of(contents, &ty.shape, lanes), contents, row_bytes).unwrap();
        let matrix = bytes.len() / matrices(&ty.shape);
        for (source, target) in self.tensor.bytes().chunks(matrix).zip(bytes.chunks_mut(matrix)) {
            packer.pack(source, target);
        }
        bytes
    }
}

fn program(layers: &[Layer]) -> (Module, Vec<Given>) {
    let mut random = Random(77);
    let mut given =
        vec![Given { tensor: Tensor::from_slice([CHOSEN.len()], &CHOSEN).unwrap(), contents: None }];
    let mut module = ModuleBuilder::new("experts");
    module
        .function("main", |b| {
            let experts = b.argument("experts", given[0].tensor.ty().clone())?;
            let mut results = Vec::new();
            for (i, &(rows, outputs, inputs, element, stored, shared, biased)) in layers.iter().enumerate() {
                let first = given.len();
                let blocks = if shared { 1 } else { CHOSEN.len() };
                given.push(Given { tensor: random.floats(element, &[blocks, rows, inputs]), contents: None });
                given.push(Given { tensor: random.floats(BF16, &[EXPERTS, outputs]), contents: None });
                match stored {
                    Dense(element) => given.push(Given {
                        tensor: random.floats(element, &[EXPERTS, outputs, inputs]),
                        contents: Some(Contents::Values(element)),
                    }),
                    Packed(bits, group_size, scale) => {
                        let shape = [EXPERTS, outputs, inputs * bits / 32];
                        let words: Vec<u32> =
                            (0..shape.iter().product()).map(|_| random.word() as u32).collect();
                        let tensor = Tensor::from_slice(shape, &words).unwrap();
                        given.push(Given { tensor, contents: Some(Contents::Packed { bits }) });
                        for _ in 0..2 {
                            let tensor = random.floats(scale, &[EXPERTS, outputs, inputs / group_size]);
                            given.push(Given { tensor, contents: Some(Contents::Groups(scale)) });
                        }
                    }
                }
                let mut values = Vec::new();
                for (part, given) in given[first..].iter().enumerate() {
                    values.push(b.argument(format!("l{i}.{part}"), given.tensor.ty().clone())?);
                }
                let bias = biased.then_some(values[1]);
                results.push(match stored {
                    Dense(_) => b.expert_linear(values[0], values[2], experts, bias, F32)?,
                    Packed(bits, group_size, scale) => {
                        let packing = affine(bits, group_size, scale);
                        let weight = PackedWeight { packing, parts: values[2..5].to_vec() };
                        packed_expert_linear(b, values[0], &weight, experts, bias, F32)?
                    }
                });
            }
            Ok(results)
        })
        .unwrap();
    (module.finish(), given)
}

fn evaluated(module: &Module, given: &[Given]) -> Vec<Vec<f32>> {
    let inputs =
        given.iter().map(|Given { tensor, .. }| Input::Borrowed { ty: tensor.ty(), bytes: tensor.bytes() });
    let results = Evaluated::plan(module, "main").unwrap().run(inputs.collect()).unwrap();
    results.iter().map(|result| result.as_slice::<f32>().unwrap().to_vec()).collect()
}

/// The text of a program, all of whose composites have kernels.
fn lowered(module: &Module, target: &ResolvedTarget, precision: Precision) -> String {
    let text = lower(module, target, precision).unwrap();
    assert!(!text.contains("stablehlo.composite"), "every layer has a kernel");
    text
}

fn compiled(text: &str, target: ResolvedTarget) -> Vec<u8> {
    let compiler = Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`");
    compiler.compile(text, &CompileOptions::new(target), None).unwrap()
}

fn computed(
    module: &Module,
    given: &[Given],
    target: &ResolvedTarget,
    precision: Precision,
) -> Vec<Vec<f32>> {
    let artifact = compiled(&lowered(module, target, precision), target.clone());
    run(module, &artifact, given, weight_lanes(target))
}

/// What a compiled program computes, whose weights lie in panels of `lanes`.
fn run(module: &Module, artifact: &[u8], given: &[Given], lanes: Option<usize>) -> Vec<Vec<f32>> {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let function = Program::load(&device, artifact).unwrap().function("main").unwrap();
    let buffers: Vec<_> = given.iter().map(|given| device.upload(&given.bytes(lanes)).unwrap()).collect();
    let arguments: Vec<_> = (buffers.iter().zip(given))
        .map(|(buffer, given)| Argument::new(buffer, &given.tensor.ty().shape, given.tensor.ty().element))
        .collect();
    let results = function.invoke(&Constants::default(), &arguments).unwrap();
    let sizes = module.function("main").unwrap().result_types().map(TensorType::bytes).collect::<Vec<_>>();
    (results.iter().zip(sizes))
        .map(|(result, size)| {
            let mut bytes = vec![0; size];
            result.buffer.read(0, &mut bytes).unwrap();
            let values = bytes.as_chunks::<4>().0.iter();
            values.map(|&four| f32::from_le_bytes(four)).collect()
        })
        .collect()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    let halves = || tensor.bytes().as_chunks::<2>().0.iter();
    match tensor.ty().element {
        BF16 => halves().map(|&half| bf16::from_le_bytes(half).to_f64()).collect(),
        F16 => halves().map(|&half| f16::from_le_bytes(half).to_f64()).collect(),
        _ => tensor.as_slice::<f32>().unwrap().iter().map(|&value| f64::from(value)).collect(),
    }
}

/// The value of each weight, and the squares of what it is the sum of.
fn weights(stored: Stored, parts: &[Given], inputs: usize) -> Vec<(f64, f64)> {
    let Packed(bits, group_size, _) = stored else {
        return floats(&parts[0].tensor).into_iter().map(|value| (value, value * value)).collect();
    };
    let words = parts[0].tensor.as_slice::<u32>().unwrap();
    let (scales, biases) = (floats(&parts[1].tensor), floats(&parts[2].tensor));
    let count = words.len() * 32 / bits;
    let value = |at: usize| {
        let word = words[at * bits / 32] >> (at * bits % 32);
        let group = at / inputs * (inputs / group_size) + at % inputs / group_size;
        let scaled = f64::from(word & ((1 << bits) - 1)) * scales[group];
        (scaled + biases[group], scaled * scaled + biases[group] * biases[group])
    };
    (0..count).map(value).collect()
}

/// What each layer is in double precision, an element and the root of the sum of its terms' squares.
fn sums(given: &[Given]) -> Vec<Vec<(f64, f64)>> {
    let mut parts = &given[1..];
    let layer = |&(rows, outputs, inputs, _, stored, shared, biased): &Layer| {
        let (own, rest) = parts.split_at(if matches!(stored, Dense(_)) { 3 } else { 5 });
        parts = rest;
        let (x, bias, w) =
            (floats(&own[0].tensor), floats(&own[1].tensor), weights(stored, &own[2..], inputs));
        let element = |at: usize| {
            let (block, row, output) = (at / (rows * outputs), at / outputs % rows, at % outputs);
            let expert = usize::try_from(CHOSEN[block]).ok().filter(|&expert| expert < EXPERTS);
            let Some(expert) = expert else { return (0.0, 0.0) };
            let x = &x[(if shared { 0 } else { block } * rows + row) * inputs..][..inputs];
            let w = &w[(expert * outputs + output) * inputs..][..inputs];
            let bias = if biased { bias[expert * outputs + output] } else { 0.0 };
            let sum = bias + x.iter().zip(w).map(|(x, (w, _))| x * w).sum::<f64>();
            let squares = bias * bias + x.iter().zip(w).map(|(x, (_, square))| x * x * square).sum::<f64>();
            (sum, squares.sqrt().max(sum.abs()))
        };
        (0..CHOSEN.len() * rows * outputs).map(element).collect()
    };
    LAYERS.iter().map(layer).collect()
}

/// Holds what was computed against what was wanted, and empty blocks to zeros. Beside rounding, elements of packed layers may be off
/// by `packed` of their terms.
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
fn blocks_meet_the_matrices_of_their_experts() {
    let (module, given) = program(&LAYERS);
    let wanted = sums(&given);
    // Whatever this processor has beside it runs what is compiled for less.
    for target in [host(), resolved("llvm-cpu:x86-64-v3")] {
        if target.check_device(&mlxcel_iree_target::DeviceDescription::of_driver("local-task")).is_ok() {
            let got = computed(&module, &given, &target, Precision::Exact);
            check(&got, &wanted, 0.0, &format!("exact, {target}"));
        }
    }
    let native = computed(&module, &given, &host(), Precision::Native);
    // Activations in 16-bit fixed point differ by 2^-16 of their group's largest at most, which is about twice what they are.
    check(&native, &wanted, 8.0 / f64::from(1 << 16), "native");
}

#[test]
fn tokens_are_grouped_on_the_device_as_by_the_evaluator() {
    let (tokens, choices, experts) = (21, 3, 10);
    let mut module = ModuleBuilder::new("routing");
    module
        .function("main", |b| {
            let scores = b.argument("scores", TensorType::new(F32, [tokens, experts]))?;
            let (values, ids) = b.top_k(scores, choices)?;
            let groups = b.group_by_expert(ids, experts, 4)?;
            let valid = b.convert(groups.valid, ElementType::I32)?;
            let numbers = [ids, groups.experts, groups.pairs, valid, groups.slots];
            let mut results = vec![values];
            for value in numbers {
                results.push(b.convert(value, F32)?);
            }
            Ok(results)
        })
        .unwrap();
    let module = module.finish();
    let scores = Random(5).floats(F32, &[tokens, experts]);
    let given = [Given { tensor: scores, contents: None }];
    let wanted = evaluated(&module, &given);
    let text = lower(&module, &host(), Precision::Exact).unwrap();
    assert_eq!(run(&module, &compiled(&text, host()), &given, None), wanted);
}

#[test]
fn kernels_compile_for_processors_that_this_one_is_not() {
    let (module, _) = program(&[LAYERS[0], LAYERS[5], LAYERS[11]]);
    for target in ["llvm-cpu:alderlake", "llvm-cpu:apple-m1"] {
        let target = resolved(target);
        assert!(!compiled(&lowered(&module, &target, Precision::Native), target).is_empty());
    }
}

#[test]
fn what_a_kernel_does_not_know_keeps_its_decomposition() {
    let composite = |attribute: &str, stored: bool| {
        let mut module = ModuleBuilder::new("experts");
        module
            .function("main", |b| {
                let x = b.argument("x", TensorType::new(F32, [1, 1, 64]))?;
                let mut weight = b.argument("w", TensorType::new(F32, [EXPERTS, 32, 64]))?;
                let experts = b.argument("experts", TensorType::new(ElementType::I32, [1]))?;
                if !stored {
                    weight = b.add(weight, weight)?;
                }
                let attributes = [(attribute.to_owned(), Attribute::Int(1))];
                let attributes = if attribute.is_empty() { &[][..] } else { &attributes };
                let name = mlxcel_stablehlo::composites::EXPERT_LINEAR;
                b.composite(name, &[x, weight, experts], attributes, |b, args| {
                    let chosen = b.reshape(args[1], &[EXPERTS, 32 * 64])?;
                    let chosen = b.take(chosen, args[2])?;
                    let chosen = b.reshape(chosen, &[32, 64])?;
                    Ok(vec![b.linear(args[0], chosen, None, F32)?])
                })
            })
            .unwrap();
        lower(&module.finish(), &resolved("llvm-cpu:x86-64-v3"), Precision::Exact)
    };
    assert!(composite("", true).unwrap().contains("@mlxcel_expert_linear_f32_1x64x32_0"));
    assert!(composite("", false).unwrap().contains("stablehlo.composite"), "a computed weight has no panels");
    assert!(composite("transposed", true).unwrap().contains("stablehlo.composite"));
}
