//! Weights as arrays: where they lie in the mapped checkpoint, expanded, or quantized while loading.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, LoadProgress, LoadStage, Result};
use mlxcel_models::{Checkpoint, Decoder, WeightRef};

use super::ops;
use super::options::WeightQuantization;
use crate::array::{Array, DType, Packed, eval};

const OPERATION: &str = "load weights";

/// A weight as the engine computes with it.
#[derive(Debug)]
pub(super) enum Weight {
    /// Its values.
    Dense(Array),
    /// Its values packed.
    Packed(Packed),
}

/// What becomes of weights on their way in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Treatment {
    /// Quantized weights are expanded to this type.
    pub(super) expand: Option<DType>,
    /// Matrices are quantized.
    pub(super) quantize: Option<WeightQuantization>,
}

/// The weights of a decoder by their references.
#[derive(Debug, Default)]
pub(super) struct Weights {
    loaded: HashMap<WeightRef, Rc<Weight>>,
    /// The bytes that they take on the device.
    pub(super) bytes: u64,
}

impl Weights {
    /// Loads the weights of `decoder`.
    ///
    /// Bytes that lie aligned in a mapped file are used where they are on a CPU.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], [`ErrorKind::ResourceExhausted`], and those of [`Checkpoint::weight`].
    pub(super) fn load(
        checkpoint: &Arc<Checkpoint>,
        decoder: &Decoder,
        treatment: Treatment,
        options: &LoadOptions,
    ) -> Result<Self> {
        let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
        let total = decoder.weight_bytes();
        let (mut weights, mut done) = (Self::default(), 0);
        for weight in decoder.weights() {
            control.check(OPERATION)?;
            let loaded = load(checkpoint, weight, treatment)
                .map_err(|error| error.with_context("tensor", &weight.tensor))?;
            weights.bytes += loaded.bytes();
            weights.loaded.insert(weight.clone(), Rc::new(loaded));
            done += weight.tensors().map(|tensor| tensor.byte_len() as u64).sum::<u64>();
            if let Some(progress) = &options.progress {
                progress(LoadProgress::new(LoadStage::Weights, done, total));
            }
        }
        Ok(weights)
    }

    /// One of the decoder's weights.
    pub(super) fn get(&self, weight: &WeightRef) -> Result<Rc<Weight>> {
        self.loaded.get(weight).cloned().ok_or_else(|| {
            Error::new(ErrorKind::Internal, OPERATION, "this weight is not among the decoder's")
                .with_context("tensor", &weight.tensor)
        })
    }

    /// One of the decoder's weights that cannot be quantized: a norm's factors or a bias.
    pub(super) fn vector(&self, weight: &WeightRef) -> Result<Array> {
        match &*self.get(weight)? {
            Weight::Dense(values) => Ok(values.clone()),
            Weight::Packed(_) => {
                Err(Error::unsupported(OPERATION, "factors and biases must not be quantized")
                    .with_context("tensor", &weight.tensor))
            }
        }
    }
}

impl Weight {
    fn bytes(&self) -> u64 {
        match self {
            Self::Dense(values) => values.byte_len() as u64,
            Self::Packed(packed) => {
                let companions = packed.biases.as_ref().map_or(0, Array::byte_len);
                (packed.words.byte_len() + packed.scales.byte_len() + companions) as u64
            }
        }
    }
}

fn load(checkpoint: &Arc<Checkpoint>, weight: &WeightRef, treatment: Treatment) -> Result<Weight> {
    let values = stored(checkpoint, weight)?;
    let packed = if let Some(quantization) = &weight.quantization {
        Packed {
            words: values,
            scales: stored(checkpoint, &quantization.scales)?,
            biases: quantization.biases.as_ref().map(|biases| stored(checkpoint, biases)).transpose()?,
            group_size: quantization.group_size,
            bits: quantization.bits,
            mode: quantization.mode,
        }
    } else if let Some(scheme) = treatment.quantize.filter(|&scheme| is_packable(weight, scheme)) {
        let packed = Packed::quantize(&values, scheme.group_size(), scheme.bits(), scheme.mode())?;
        eval([&packed.words, &packed.scales].into_iter().chain(&packed.biases))?;
        packed
    } else {
        return Ok(Weight::Dense(values));
    };
    let Some(dtype) = treatment.expand else { return Ok(Weight::Packed(packed)) };
    let expanded = ops::dequantize(&packed, dtype)?;
    eval([&expanded])?;
    Ok(Weight::Dense(expanded))
}

/// Whether `weight` is a matrix whose rows are whole groups.
fn is_packable(weight: &WeightRef, scheme: WeightQuantization) -> bool {
    matches!(weight.shape[..], [_, columns] if columns.is_multiple_of(scheme.group_size()))
}

/// A tensor of the checkpoint as it is stored.
fn stored(checkpoint: &Arc<Checkpoint>, weight: &WeightRef) -> Result<Array> {
    // A reference that does not fit is noticed here, so that it need not be where its bytes are taken.
    checkpoint.weight(weight)?;
    let dtype = DType::of(weight.element).ok_or_else(|| {
        Error::unsupported(OPERATION, "this element type is not computed with")
            .with_context("element_type", weight.element)
    })?;
    let bytes = Arc::new(Stored { checkpoint: Arc::clone(checkpoint), weight: weight.clone() });
    Array::from_shared(&bytes, &weight.stored_shape(), dtype)
}

/// The bytes of one tensor, which keep the checkpoint's files mapped.
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
