//! The kernels on the device, against the evaluator running what they replace: unpack to float32, then multiply.

use half::{bf16, f16};
use mlxcel_core::Precision;
use mlxcel_graph::packed::{PackedWeight, packed_embedding, packed_linear};
use mlxcel_iree_kernels::layout::{Contents, Packer, WeightLayout};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_models::Packing;
use mlxcel_stablehlo::eval::{Input, Program as Evaluated, Tensor};
use mlxcel_stablehlo::{ElementType, Module, ModuleBuilder, TensorType};

use super::{lower, weight_lanes};
use crate::ffi::{Argument, Constants, Device, DeviceOptions, Program};
use crate::testing::{host, resolved};
use mlxcel_iree_compile::compiler::{CompileOptions, Compiler};

use ElementType::{BF16, F16, F32, U32};

/// A layer over a packed weight: rows, outputs, inputs, bits, group size, type of the scales.
type Layer = (usize, usize, usize, usize, usize, ElementType);

/// Rows from 1 to 16 and many; whole panels, tails and only a tail; every group size and type of scales.
const LAYERS: [Layer; 18] = [
    (1, 73, 192, 4, 64, BF16),
    (1, 7, 64, 4, 64, F16),
    (1, 160, 256, 8, 32, F16),
    (2, 48, 128, 4, 32, F16),
    (3, 33, 192, 8, 64, BF16),
    (4, 80, 256, 8, 128, F32),
    (5, 64, 64, 4, 64, BF16),
    (6, 40, 96, 4, 32, F32),
    (7, 41, 128, 4, 128, BF16),
    (8, 64, 128, 8, 128, BF16),
    (9, 48, 64, 4, 64, F16),
    (10, 17, 64, 8, 32, BF16),
    (11, 32, 128, 4, 128, F16),
    (12, 16, 64, 4, 64, BF16),
    (14, 30, 64, 8, 64, BF16),
    (16, 50, 192, 4, 64, BF16),
    (17, 50, 192, 8, 64, F16),
    (150, 34, 128, 4, 64, BF16),
];

/// Tables: ids, rows, width, bits, group size, type of the scales.
const TABLES: [Layer; 4] =
    [(1, 73, 192, 4, 64, BF16), (5, 40, 64, 8, 32, F16), (70, 9, 256, 4, 128, F32), (3, 64, 64, 8, 64, BF16)];

/// Numbers without a pattern, between -1 and 1.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn next(&mut self) -> f32 {
        (self.word() % 2001) as f32 / 1000.0 - 1.0
    }
}

fn floats(element: ElementType, shape: &[usize], values: &[f32]) -> Tensor {
    let tensor = match element {
        BF16 => Tensor::from_slice(shape, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
        F16 => Tensor::from_slice(shape, &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
        _ => Tensor::from_slice(shape, values),
    };
    tensor.unwrap()
}

/// Words, scales and biases of a weight like those of real ones: values about zero, of either sign.
fn packed(&(_, outputs, inputs, bits, group_size, element): &Layer, random: &mut Random) -> [Tensor; 3] {
    let words: Vec<u32> = (0..outputs * inputs * bits / 32).map(|_| random.word() as u32).collect();
    let groups = [outputs, inputs / group_size];
    let steps = f32::from(1u16 << bits);
    let scales: Vec<f32> = (0..groups[0] * groups[1]).map(|_| (random.next() + 2.0) / steps).collect();
    let biases: Vec<f32> = scales.iter().map(|scale| -scale * steps * (0.5 + random.next() / 10.0)).collect();
    let words = Tensor::from_slice([outputs, inputs * bits / 32], &words).unwrap();
    [words, floats(element, &groups, &scales), floats(element, &groups, &biases)]
}

/// Activations of which each row has another magnitude, and some are far larger than the others.
fn activations(rows: usize, inputs: usize, random: &mut Random) -> Tensor {
    let values: Vec<f32> = (0..rows * inputs)
        .map(|i| random.next() * if i % 97 == 5 { 20.0 } else { 1.0 } * (1 + i / inputs) as f32)
        .collect();
    Tensor::from_slice([rows, inputs], &values).unwrap()
}

/// A packing in MLX's affine mode.
pub(super) fn affine(bits: usize, group_size: usize, element: ElementType) -> Packing {
    let element = match element {
        ElementType::F16 => mlxcel_models::ElementType::F16,
        ElementType::BF16 => mlxcel_models::ElementType::BF16,
        _ => mlxcel_models::ElementType::F32,
    };
    Packing::affine(bits, group_size, element)
}

/// Layers and tables as one program, and its arguments.
fn program(layers: &[Layer], tables: &[Layer]) -> (Module, Vec<Tensor>) {
    let mut random = Random(77);
    let mut tensors = Vec::new();
    let mut module = ModuleBuilder::new("packed");
    module
        .function("main", |b| {
            let mut results = Vec::new();
            for (i, layer) in layers.iter().enumerate() {
                let &(rows, outputs, inputs, bits, group_size, element) = layer;
                let bias: Vec<f32> = (0..outputs).map(|_| random.next()).collect();
                let parts: Vec<Tensor> = [activations(rows, inputs, &mut random)]
                    .into_iter()
                    .chain(packed(layer, &mut random))
                    .chain([floats(element, &[outputs], &bias)])
                    .collect();
                let mut values = Vec::new();
                for (part, tensor) in parts.iter().enumerate() {
                    values.push(b.argument(format!("l{i}.{part}"), tensor.ty().clone())?);
                }
                let &[x, ref packed @ .., bias] = &values[..] else { unreachable!() };
                let weight =
                    PackedWeight { packing: affine(bits, group_size, element), parts: packed.to_vec() };
                // Every third has a bias.
                results.push(packed_linear(b, x, &weight, (i % 3 == 0).then_some(bias), F32)?);
                tensors.extend(parts);
            }
            for (i, table) in tables.iter().enumerate() {
                let &(count, rows, _, bits, group_size, element) = table;
                // Some ids are beyond the table.
                let ids: Vec<i32> =
                    (0..count).map(|_| (random.word() % (rows as u64 + 6)) as i32 - 3).collect();
                let parts: Vec<Tensor> = packed(table, &mut random)
                    .into_iter()
                    .chain([Tensor::from_slice([count], &ids).unwrap()])
                    .collect();
                let mut values = Vec::new();
                for (part, tensor) in parts.iter().enumerate() {
                    values.push(b.argument(format!("t{i}.{part}"), tensor.ty().clone())?);
                }
                let (&ids, packed) = values.split_last().unwrap();
                let table =
                    PackedWeight { packing: affine(bits, group_size, element), parts: packed.to_vec() };
                results.push(packed_embedding(b, &table, ids)?);
                tensors.extend(parts);
            }
            Ok(results)
        })
        .unwrap();
    (module.finish(), tensors)
}

fn evaluated(module: &Module, tensors: &[Tensor]) -> Vec<Vec<f32>> {
    let inputs =
        tensors.iter().map(|tensor| Input::Borrowed { ty: tensor.ty(), bytes: tensor.bytes() }).collect();
    let results = Evaluated::plan(module, "main").unwrap().run(inputs).unwrap();
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

/// The bytes of each argument as kernels of so many lanes want them.
fn laid_out(tensors: &[Tensor], lanes: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = tensors.iter().map(|tensor| tensor.bytes().to_vec()).collect();
    let first_words = LAYERS.iter().enumerate().map(|(i, layer)| (i * 5 + 1, layer.3));
    let tables = TABLES.iter().enumerate().map(|(i, table)| (LAYERS.len() * 5 + i * 4, table.3));
    for (words, bits) in first_words.chain(tables) {
        for place in words..words + 3 {
            let ty: &TensorType = tensors[place].ty();
            let contents = if place == words {
                assert_eq!(ty.element, U32);
                Contents::Packed { bits }
            } else {
                Contents::Groups(ty.element)
            };
            let layout = WeightLayout::of(contents, &ty.shape, Some(lanes));
            let row_bytes = ty.element.bytes_for(ty.shape[1]);
            let packer = Packer::new(layout, contents, row_bytes).unwrap();
            packer.pack(tensors[place].bytes(), &mut all[place]);
        }
    }
    all
}

/// What the kernels for `target`, which this machine must run, compute.
fn computed(
    module: &Module,
    tensors: &[Tensor],
    target: &ResolvedTarget,
    precision: Precision,
) -> Vec<Vec<f32>> {
    let artifact = compiled(&lowered(module, target, precision), target.clone());
    let lanes = weight_lanes(target).unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let function = Program::load(&device, &artifact).unwrap().function("main").unwrap();
    let buffers: Vec<_> =
        laid_out(tensors, lanes).iter().map(|bytes| device.upload(bytes).unwrap()).collect();
    let arguments: Vec<_> = buffers
        .iter()
        .zip(tensors)
        .map(|(buffer, tensor)| Argument::new(buffer, &tensor.ty().shape, tensor.ty().element))
        .collect();
    let results = function.invoke(&Constants::default(), &arguments).unwrap();
    let entry = module.function("main").unwrap();
    let sizes = entry.result_types().map(TensorType::bytes);
    results
        .iter()
        .zip(sizes)
        .map(|(result, size)| {
            let mut bytes = vec![0; size];
            result.buffer.read(0, &mut bytes).unwrap();
            bytes
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect()
        })
        .collect()
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
fn exact_kernels_compute_what_the_decomposition_says() {
    let (module, tensors) = program(&LAYERS, &TABLES);
    let wanted = evaluated(&module, &tensors);
    // Whatever this processor has beside it runs what is compiled for less.
    for target in [host(), resolved("llvm-cpu:x86-64-v3")] {
        if target.check_device(&mlxcel_iree_target::DeviceDescription::of_driver("local-task")).is_err() {
            continue;
        }
        for (i, (got, wanted)) in
            computed(&module, &tensors, &target, Precision::Exact).iter().zip(&wanted).enumerate()
        {
            let error = largest_error(got, wanted);
            assert!(error <= 1e-5, "{target}, {:?}: {error}", LAYERS.iter().chain(&TABLES).nth(i));
        }
    }
}

#[test]
fn fixed_point_errs_less_than_rounding_activations_to_bfloat16() {
    let (module, tensors) = program(&LAYERS, &TABLES);
    let wanted = evaluated(&module, &tensors);
    let mut rounded = tensors.clone();
    for i in 0..LAYERS.len() {
        let x = rounded[i * 5].as_slice::<f32>().unwrap().iter();
        let x: Vec<f32> = x.map(|&x| bf16::from_f32(x).to_f32()).collect();
        rounded[i * 5] = Tensor::from_slice(rounded[i * 5].ty().shape.clone(), &x).unwrap();
    }
    let rounded = evaluated(&module, &rounded);
    let native = computed(&module, &tensors, &host(), Precision::Native);
    let fast = computed(&module, &tensors, &host(), Precision::Fast);
    for (i, layer) in LAYERS.iter().enumerate() {
        let bfloat16 = mean_error(&rounded[i], &wanted[i]);
        let fixed = mean_error(&native[i], &wanted[i]);
        assert!(fixed <= bfloat16 / 4.0, "{layer:?}: {fixed} in fixed point, {bfloat16} in bfloat16");
        let error = largest_error(&fast[i], &wanted[i]);
        assert!(error <= 8e-2, "{layer:?}: {error} with activations of 8 bits");
    }
    for i in LAYERS.len()..wanted.len() {
        for got in [&native[i], &fast[i]] {
            assert!(largest_error(got, &wanted[i]) <= 1e-6, "rows of tables are exact at every precision");
        }
    }
}

#[test]
fn kernels_compile_for_processors_that_this_one_is_not() {
    let (module, _) = program(&[LAYERS[0], LAYERS[4], LAYERS[8]], &TABLES[..1]);
    for target in ["llvm-cpu:alderlake", "llvm-cpu:apple-m1"] {
        let target = resolved(target);
        let artifact = compiled(&lowered(&module, &target, Precision::Native), target);
        assert!(!artifact.is_empty());
    }
}
