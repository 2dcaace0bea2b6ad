//! The kernels on the device, against the evaluator running what they replace.

use half::{bf16, f16};
use mlxcel_core::Precision;
use mlxcel_stablehlo::eval::{Input, Program as Evaluated, Tensor};
use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};

use super::lower;
use crate::compiler::{CompileOptions, Compiler};
use crate::ffi::{Argument, Constants, Device, DeviceOptions, Program};

/// A linear layer: rows, outputs, inputs, and the element types of operand, weight and result.
type Layer = (usize, usize, usize, ElementType, ElementType, ElementType);

use ElementType::{BF16, F16, F32};

/// One row and several, whole tiles and odd ends, every type; the rows are 1 to 16.
const LAYERS: [Layer; 12] = [
    (1, 729, 192, F32, BF16, F32),
    (1, 256, 512, BF16, BF16, BF16),
    (1, 3, 4, F32, F32, F32),
    (2, 10, 20, F32, F16, F32),
    (3, 64, 36, F16, F16, F16),
    (4, 128, 64, F32, BF16, F32),
    (5, 7, 8, F32, BF16, BF16),
    (7, 30, 100, F32, F32, F32),
    (8, 33, 64, BF16, BF16, F32),
    (12, 2, 16, F32, BF16, F32),
    (16, 513, 48, F32, BF16, F32),
    (6, 1, 2048, F32, F32, F32),
];

fn values(ty: &TensorType, seed: u64) -> Tensor {
    // Numbers with few bits, so that every element type holds them exactly.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f32> = (0..ty.elements())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as i32 % 129 - 64) as f32 / 64.0
        })
        .collect();
    let tensor = match ty.element {
        BF16 => Tensor::from_slice(
            ty.shape.clone(),
            &values.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>(),
        ),
        F16 => Tensor::from_slice(
            ty.shape.clone(),
            &values.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>(),
        ),
        _ => Tensor::from_slice(ty.shape.clone(), &values),
    };
    tensor.unwrap()
}

fn as_f32(ty: &TensorType, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match ty.element {
        BF16 => halves.map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        F16 => halves.map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        _ => bytes
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect(),
    }
}

#[test]
fn kernels_compute_what_the_decomposition_says() {
    let mut module = ModuleBuilder::new("kernels");
    let mut types = Vec::new();
    module
        .function("main", |b| {
            let mut results = Vec::new();
            for (i, (rows, outputs, inputs, x, weight, out)) in LAYERS.into_iter().enumerate() {
                let x = TensorType::new(x, [rows, inputs]);
                let w = TensorType::new(weight, [outputs, inputs]);
                let bias = TensorType::new(weight, [outputs]);
                let arguments = [
                    b.argument(format!("x{i}"), x.clone())?,
                    b.argument(format!("w{i}"), w.clone())?,
                    b.argument(format!("b{i}"), bias.clone())?,
                ];
                types.extend([x, w, bias]);
                // Every third has a bias.
                let bias = (i % 3 == 0).then_some(arguments[2]);
                results.push(b.linear(arguments[0], arguments[1], bias, out)?);
            }
            Ok(results)
        })
        .unwrap();
    let module = module.finish();
    let tensors: Vec<Tensor> = types.iter().zip(1..).map(|(ty, seed)| values(ty, seed)).collect();

    let inputs =
        tensors.iter().map(|tensor| Input::Borrowed { ty: tensor.ty(), bytes: tensor.bytes() }).collect();
    let wanted = Evaluated::plan(&module, "main").unwrap().run(inputs).unwrap();

    let text = lower(&module, &crate::backend::host(), Precision::Exact).unwrap();
    assert!(!text.contains("stablehlo.composite"), "every layer has a kernel");
    let compiler = Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`");
    let artifact = compiler.compile(&text, &CompileOptions::new(crate::backend::host()), None).unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let function = Program::load(&device, &artifact).unwrap().function("main").unwrap();
    let buffers: Vec<_> = tensors.iter().map(|tensor| device.upload(tensor.bytes()).unwrap()).collect();
    let arguments: Vec<_> =
        buffers.iter().zip(&types).map(|(buffer, ty)| Argument::new(buffer, &ty.shape, ty.element)).collect();
    let results = function.invoke(&Constants::default(), &arguments).unwrap();

    for ((layer, result), wanted) in LAYERS.iter().zip(results).zip(wanted) {
        let ty = wanted.ty();
        let mut bytes = vec![0; ty.bytes()];
        result.buffer.read(0, &mut bytes).unwrap();
        let tolerance = match ty.element {
            BF16 => 8e-3,
            F16 => 1e-3,
            _ => 1e-5,
        };
        let wanted = as_f32(ty, wanted.bytes());
        let scale = wanted.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
        for (got, wanted) in as_f32(ty, &bytes).into_iter().zip(wanted) {
            assert!((got - wanted).abs() <= tolerance * scale, "{layer:?}: {got} is not {wanted}");
        }
    }
}
