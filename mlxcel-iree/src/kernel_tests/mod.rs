//! The kernels of `mlxcel-iree-kernels`, compiled and run on the device.

mod attention;
mod experts;
mod linear;
mod packed;
mod quantized;
mod speed;

use mlxcel_core::{Precision, Result};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_stablehlo::Module;

/// The text of `module` for `target`.
fn lower(module: &Module, target: &ResolvedTarget, precision: Precision) -> Result<String> {
    mlxcel_iree_kernels::lower(module, target.hardware()?, precision)
}

/// The lanes of the panels in which programs for `target` expect their weights.
fn weight_lanes(target: &ResolvedTarget) -> Option<usize> {
    target.hardware().unwrap().weight_lanes()
}
