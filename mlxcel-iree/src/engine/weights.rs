//! Weights on the device: from the checkpoint's files, once, in the type that they are stored in.

use std::sync::Arc;

use mlxcel_core::{Control, LoadOptions, LoadProgress, LoadStage, Result};
use mlxcel_graph::weight_arguments;
use mlxcel_models::{Checkpoint, Decoder, WeightRef};

use crate::ffi::{Argument, Constants, Device};

/// The weights of `decoder` in the order of its programs' arguments.
///
/// Bytes that lie aligned in a mapped file are used where they are, so they take no memory of this process's own; others are
/// copied to the device.
pub(super) fn on_device(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    decoder: &Decoder,
    options: &LoadOptions,
) -> Result<Constants> {
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let total = decoder.weight_bytes();
    let mut done = 0;
    let mut buffers = Vec::new();
    for (weight, ty) in weight_arguments(decoder)? {
        control.check("load weights")?;
        let bytes = checkpoint.weight(weight)?.bytes.len();
        let stored = Arc::new(Stored { checkpoint: Arc::clone(checkpoint), weight: weight.clone() });
        let buffer =
            device.import(&stored, 0..bytes).map_err(|error| error.with_context("tensor", &weight.tensor))?;
        buffers.push((buffer, ty));
        done += bytes as u64;
        if let Some(progress) = &options.progress {
            progress(LoadProgress::new(LoadStage::Weights, done, total));
        }
    }
    let arguments: Vec<_> =
        buffers.iter().map(|(buffer, ty)| Argument::new(buffer, &ty.shape, ty.element)).collect();
    Constants::new(&arguments)
}

/// The bytes of one weight, which keep the checkpoint's files mapped.
struct Stored {
    checkpoint: Arc<Checkpoint>,
    weight: WeightRef,
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        // It was there when this was made; were it not, no bytes would be too few for any use of them.
        self.checkpoint.weight(&self.weight).map_or(&[], |view| view.bytes)
    }
}
