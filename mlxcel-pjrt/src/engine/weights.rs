//! Weights on the devices: from the checkpoint's mapped files, once.

use std::borrow::Cow;

use mlxcel_core::{Control, LoadOptions, LoadProgress, LoadStage, Result};
use mlxcel_models::{Checkpoint, Decoder};

use super::programs::Programs;
use crate::ffi::Buffer;

/// The weights of a model: of each argument a buffer on each device.
pub(crate) type Weights = Vec<Vec<Buffer>>;

/// Copies each weight that `programs` take to the devices, each getting its part, in the type that it is
/// stored in, or expanded where the programs take another one. The host holds one tensor at most beside the
/// mapped files, and that only where it is expanded or put together from several places. `stored` is the
/// checkpoint's decoder.
///
/// # Errors
///
/// [`ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted),
/// [`Cancelled`](mlxcel_core::ErrorKind::Cancelled) between tensors, and those of reading one, with its name.
pub(crate) fn on_devices(
    programs: &Programs,
    checkpoint: &Checkpoint,
    stored: &Decoder,
    options: &LoadOptions,
) -> Result<Weights> {
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let total = programs.weights().map(|(argument, _)| argument.ty.bytes() as u64).sum();
    let mut done = 0;
    let report = |done| {
        if let Some(progress) = &options.progress {
            progress(LoadProgress::new(LoadStage::Weights, done, total));
        }
    };
    report(0);
    let mut weights = Vec::new();
    for (argument, sharding) in programs.weights() {
        control.check("load weights")?;
        let named = |error: mlxcel_core::Error| error.with_context("tensor", &argument.tensor.tensor);
        let of_checkpoint = stored.weight(argument.weight);
        let bytes = if argument.part.is_none() && *of_checkpoint != argument.tensor {
            Cow::Owned(checkpoint.expanded_weight(of_checkpoint, argument.tensor.element)?)
        } else {
            checkpoint.weight(&argument.tensor)?.bytes
        };
        weights.push(programs.mesh.upload(&argument.ty, sharding, &bytes).map_err(named)?);
        done += argument.ty.bytes() as u64;
        report(done);
    }
    Ok(weights)
}
