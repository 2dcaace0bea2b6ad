//! Weights on the devices: from the checkpoint's mapped files, once, in the types that they are stored in.

use mlxcel_core::{Control, LoadOptions, LoadProgress, LoadStage, Result};
use mlxcel_graph::WeightArgument;
use mlxcel_models::Checkpoint;

use super::mesh::MeshDevices;
use crate::ffi::Buffer;
use crate::sharding::Sharding;

/// The weights of a model: of each argument a buffer on each device.
pub(crate) type Weights = Vec<Vec<Buffer>>;

/// Copies each weight to the devices, to each the part that is its. The host holds one tensor at most beside the mapped files, and that only
/// where it is put together from several places.
///
/// # Errors
///
/// [`ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted), [`Cancelled`](mlxcel_core::ErrorKind::Cancelled) between tensors, and
/// those of reading one, with its name.
pub(crate) fn on_devices(
    mesh: &MeshDevices,
    checkpoint: &Checkpoint,
    arguments: &[WeightArgument],
    shardings: &[Sharding],
    options: &LoadOptions,
) -> Result<Weights> {
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let total = arguments.iter().map(|argument| argument.ty.bytes() as u64).sum();
    let mut done = 0;
    let report = |done| {
        if let Some(progress) = &options.progress {
            progress(LoadProgress::new(LoadStage::Weights, done, total));
        }
    };
    report(0);
    let mut weights = Vec::with_capacity(arguments.len());
    for (argument, sharding) in arguments.iter().zip(shardings) {
        control.check("load weights")?;
        let named = |error: mlxcel_core::Error| error.with_context("tensor", &argument.tensor.tensor);
        let view = checkpoint.weight(&argument.tensor)?;
        weights.push(mesh.upload(&argument.ty, *sharding, &view.bytes).map_err(named)?);
        done += argument.ty.bytes() as u64;
        report(done);
    }
    Ok(weights)
}
