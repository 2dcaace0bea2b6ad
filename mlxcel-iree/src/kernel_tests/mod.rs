//! The kernels of `mlxcel-iree-kernels`, compiled and run on the device.

mod attention;
mod experts;
mod instructions;
mod linear;
mod norm;
mod packed;
mod quantized;
mod row_counts;
mod speed;

use mlxcel_core::{Precision, Result};
use mlxcel_iree_kernels::Layouts;
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_stablehlo::eval::Tensor;
use mlxcel_stablehlo::{Argument, Module};

/// The text of `module` for `target`.
fn lower(module: &Module, target: &ResolvedTarget, precision: Precision) -> Result<String> {
    Ok(mlxcel_iree_kernels::lower(module, target.hardware()?, precision)?.text)
}

/// `target` with schedules that differ in everything.
fn schedules_of(target: &ResolvedTarget) -> [ResolvedTarget; 2] {
    ["streams=4 ahead=1024 bf16=floats", "streams=1 ahead=8192 bf16=pairs"]
        .map(|schedule| target.clone().with_schedule(schedule.parse().unwrap()))
}

/// How the program of `module` for `target` takes its arguments.
fn layouts(module: &Module, target: &ResolvedTarget) -> Layouts {
    mlxcel_iree_kernels::lower(module, target.hardware().unwrap(), Precision::Exact).unwrap().layouts
}

/// The bytes of each argument of `module`, laid out.
fn laid_out(module: &Module, tensors: &[Tensor], layouts: &Layouts) -> Vec<Vec<u8>> {
    let main = module.functions.iter().find(|function| function.public).unwrap();
    let one = |(tensor, argument): (&Tensor, &Argument)| match layouts.get(&argument.name) {
        Some(panels) => panels.pack(&tensor.ty().shape, tensor.bytes()),
        None => tensor.bytes().to_vec(),
    };
    tensors.iter().zip(&main.arguments).map(one).collect()
}
