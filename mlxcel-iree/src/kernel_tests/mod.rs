//! The kernels of `mlxcel-iree-kernels`, compiled and run on the device.

mod attention;
mod experts;
mod instructions;
mod linear;
mod norm;
mod packed;
mod quantized;
mod recurrent;
mod row_counts;
mod speed;

use std::borrow::Cow;

use half::{bf16, f16};
use mlxcel_core::{Precision, Result};
use mlxcel_iree_kernels::{Layouts, Lowered};
use mlxcel_iree_runtime::{Device, DeviceOptions, Program};
use mlxcel_iree_target::{DeviceDescription, ResolvedTarget};
use mlxcel_portable::eval::{Input, Program as Evaluated, Tensor};
use mlxcel_stablehlo::{Builder, ElementType, Module, TensorType, Value};

use crate::testing::{Returned, call, compiled, host, resolved};

/// One program for all of `cases`, each of which `build` adds with its number and its results: starting the
/// compiler takes longer than compiling a kernel.
fn module_of<C>(
    name: &str,
    cases: &[C],
    build: impl for<'f> Fn(&C, &mut Builder<'f>, usize, &mut Vec<Value<'f>>) -> mlxcel_stablehlo::Result<()>,
) -> Module {
    Module::of_function(name, "main", |b| {
        let mut results = Vec::new();
        for (number, case) in cases.iter().enumerate() {
            build(case, b, number, &mut results)?;
        }
        Ok(results)
    })
    .unwrap()
}

/// Arguments of these types, named by `prefix` and their number.
fn arguments<'f, 't>(
    b: &mut Builder<'f>,
    prefix: &str,
    types: impl IntoIterator<Item = &'t TensorType>,
) -> mlxcel_stablehlo::Result<Vec<Value<'f>>> {
    let types = types.into_iter().enumerate();
    types.map(|(number, ty)| b.argument(format!("{prefix}.{number}"), ty.clone())).collect()
}

/// What the evaluator gives.
fn evaluated(module: &Module, tensors: &[Tensor]) -> Vec<Tensor> {
    let inputs =
        tensors.iter().map(|tensor| Input::Borrowed { ty: tensor.ty(), bytes: tensor.bytes() }).collect();
    Evaluated::plan(module, "main").unwrap().run(inputs).unwrap()
}

/// The text of `module` for `target`.
fn lower(module: &Module, target: &ResolvedTarget, precision: Precision) -> Result<String> {
    Ok(mlxcel_iree_kernels::lower(module, target.hardware()?, precision)?.text)
}

/// A lesser processor than this one, whose programs it runs beside its own; none if its own have the same
/// instructions.
fn lesser() -> Option<ResolvedTarget> {
    let lesser = resolved("llvm-cpu:x86-64-v3");
    lesser.check_device(&DeviceDescription::of_driver("local-task")).ok()?;
    let [of_lesser, own] = [&lesser, &host()].map(|target| target.hardware().unwrap().instructions());
    let same = of_lesser.zip(own).is_some_and(|(lesser, own)| own.scheduled(lesser.schedule) == lesser);
    (!same).then_some(lesser)
}

/// `target` with schedules that differ in everything.
fn schedules_of(target: &ResolvedTarget) -> [ResolvedTarget; 2] {
    ["streams=4 ahead=1024 bf16=floats", "streams=1 ahead=8192 bf16=pairs"]
        .map(|schedule| target.clone().with_schedule(schedule.parse().unwrap()))
}

/// A lowered program, all of whose composites have kernels.
fn lowered(module: &Module, target: &ResolvedTarget, precision: Precision) -> Lowered {
    let lowered = mlxcel_iree_kernels::lower(module, target.hardware().unwrap(), precision).unwrap();
    assert!(!lowered.text.contains("stablehlo.composite"), "every layer has a kernel:\n{}", lowered.text);
    lowered
}

/// What the kernels for `target`, which this machine must run, return.
fn on_device(
    module: &Module,
    tensors: &[Tensor],
    target: &ResolvedTarget,
    precision: Precision,
) -> Vec<Returned> {
    let lowered = lowered(module, target, precision);
    run(module, &compiled(&lowered.text, target), tensors, &lowered.layouts)
}

/// What a compiled program returns, whose weights lie as `layouts` say.
fn run(module: &Module, artifact: &[u8], tensors: &[Tensor], layouts: &Layouts) -> Vec<Returned> {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let function = Program::load(&device, artifact).unwrap().function("main").unwrap();
    let main = module.function("main").unwrap();
    let bytes: Vec<_> = (tensors.iter().zip(&main.arguments))
        .map(|(tensor, argument)| match layouts.get(&argument.name) {
            Some(panels) => Cow::Owned(panels.pack(&tensor.ty().shape, tensor.bytes())),
            None => Cow::Borrowed(tensor.bytes()),
        })
        .collect();
    call(&device, &function, tensors.iter().zip(&bytes).map(|(tensor, bytes)| (tensor.ty(), &bytes[..])))
}

/// [`on_device`], as floats.
fn computed(
    module: &Module,
    tensors: &[Tensor],
    target: &ResolvedTarget,
    precision: Precision,
) -> Vec<Vec<f32>> {
    floats_of(&on_device(module, tensors, target, precision))
}

fn floats_of(results: &[Returned]) -> Vec<Vec<f32>> {
    results.iter().map(|result| as_f32(&result.ty, &result.bytes)).collect()
}

/// The elements of a tensor of this type, as float32.
fn as_f32(ty: &TensorType, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match ty.element {
        ElementType::BF16 => halves.map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        ElementType::F16 => halves.map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        ElementType::I8 => bytes.iter().map(|&byte| f32::from(byte as i8)).collect(),
        _ => bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(),
    }
}

/// By how much rounding to halves of this type changes a number, relative to it; nothing for other types.
fn rounding_to(element: ElementType) -> f64 {
    match element {
        ElementType::BF16 => 1.0 / 256.0,
        ElementType::F16 => 1.0 / 2048.0,
        _ => 0.0,
    }
}
