//! ModelOpt: 8-bit floats as other tools store them, and 4-bit floats with scales of groups and of all.
//!
//! A module of 4-bit floats has `weight` U8 `[rows, columns / 2]`, the first of two codes in the lower bits,
//! `weight_scale` F8_E4M3 `[rows, columns / 16]`, and `weight_scale_2`, one number. A value is
//! `weight_scale_2 · weight_scale · code`. Activations stay floats.

use mlxcel_core::Result;

use super::compressed::{SECOND, nvfp4};
use super::fp8;
use super::module::Module;
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::WeightRef;
use crate::element::ElementType;

/// The matrix of a module: packed where it has a scale, else dense.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    const SMOOTHING: &str = "pre_quant_scale";
    if checkpoint.has(&format!("{name}.{SMOOTHING}")) {
        let module = Module::new(checkpoint, name, shape)?;
        let message = "weights whose inputs are to be multiplied are not supported".to_owned();
        return Err(module.tensor(SMOOTHING)?.unsupported(message));
    }
    let (view, _) = checkpoint.located(&format!("{name}.weight"))?;
    if view.element_type != ElementType::U8 {
        return fp8::matrix(checkpoint, settings, name, shape);
    }
    let module = Module::new(checkpoint, name, shape)?;
    nvfp4(&module, &module.tensor("weight")?, SECOND)
}
