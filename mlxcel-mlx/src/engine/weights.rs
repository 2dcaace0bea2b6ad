//! Weights as arrays: mapped from the checkpoint, dequantized, or quantized while loading.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, LoadProgress, LoadStage, Result};
use mlxcel_models::read::{PackedRows, Scratch};
use mlxcel_models::{Checkpoint, Decoder, Part, WeightId, WeightRef};

use super::affine::{self, Parameters};
use super::compute;
use super::options::WeightQuantization;
use crate::array::{Array, DType, Mode, Packed, eval};

const OPERATION: &str = "load weights";

/// A weight in the form that the engine computes with.
#[derive(Debug)]
pub(super) enum Weight {
    /// Its values.
    Dense(Array),
    /// Its values packed.
    Packed(Packed),
}

/// Conversions of weights while loading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Treatment {
    /// Quantized weights are expanded to this type.
    pub(super) expand: Option<DType>,
    /// Matrices of products are quantized.
    pub(super) quantize: Option<WeightQuantization>,
    /// Scales and biases converted from another packing are rounded to this type.
    pub(super) parameters: Option<DType>,
}

/// The weights of a decoder, in the order of its table.
#[derive(Debug, Default)]
pub(super) struct Weights {
    loaded: Vec<Loaded>,
    /// Their bytes on the device.
    pub(super) bytes: u64,
}

#[derive(Debug)]
struct Loaded {
    weight: Weight,
    /// The array, created on first use.
    derived: OnceCell<(Derived, Array)>,
}

/// A value derived from a weight for steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Derived {
    /// Its values in float32, plus a number.
    Plus(f32),
    /// Its values in float32, with rows and columns swapped.
    Transposed,
}

impl Weights {
    /// Loads the weights of `decoder`.
    ///
    /// Contiguous, aligned bytes of a mapped file are used in place on a CPU.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], [`ErrorKind::ResourceExhausted`], and the errors of [`Checkpoint::weight`].
    pub(super) fn load(
        checkpoint: &Arc<Checkpoint>,
        decoder: &Decoder,
        treatment: Treatment,
        options: &LoadOptions,
    ) -> Result<Self> {
        let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
        let total = decoder.weight_bytes();
        let (mut weights, mut done) = (Self::default(), 0);
        let products = decoder.products();
        let mut products = products.iter().map(|id| id.index()).peekable();
        for (index, weight) in decoder.weights().enumerate() {
            control.check(OPERATION)?;
            let multiplied = products.next_if_eq(&index).is_some();
            let treatment = Treatment { quantize: treatment.quantize.filter(|_| multiplied), ..treatment };
            let loaded = load(checkpoint, weight, treatment)
                .map_err(|error| error.with_context("tensor", &weight.tensor))?;
            weights.bytes += loaded.bytes();
            weights.loaded.push(Loaded { weight: loaded, derived: OnceCell::new() });
            done += weight.tensors().map(|tensor| tensor.byte_len() as u64).sum::<u64>();
            if let Some(progress) = &options.progress {
                progress(LoadProgress::new(LoadStage::Weights, done, total));
            }
        }
        Ok(weights)
    }

    /// Weights made by a test.
    #[cfg(test)]
    pub(super) fn of(arrays: Vec<Array>) -> Self {
        let loaded = |array| Loaded { weight: Weight::Dense(array), derived: OnceCell::new() };
        Self { loaded: arrays.into_iter().map(loaded).collect(), bytes: 0 }
    }

    /// One of the decoder's weights.
    pub(super) fn get(&self, weight: WeightId) -> Result<&Weight> {
        self.loaded(weight).map(|loaded| &loaded.weight)
    }

    /// One of the decoder's weights that cannot be packed: a norm's factors or a bias.
    pub(super) fn dense(&self, weight: WeightId) -> Result<&Array> {
        match self.get(weight)? {
            Weight::Dense(values) => Ok(values),
            Weight::Packed(_) => {
                Err(Error::unsupported("step", "norm weights and biases must not be quantized")
                    .with_context("weight", weight.index()))
            }
        }
    }

    /// The derived array of such a weight, computed on first use.
    pub(super) fn derived(&self, weight: WeightId, derived: Derived) -> Result<Array> {
        let loaded = self.loaded(weight)?;
        match loaded.derived.get() {
            Some((known, array)) if *known == derived => return Ok(array.clone()),
            _ => {}
        }
        let values = self.dense(weight)?.astype(DType::F32)?;
        let array = match derived {
            Derived::Plus(0.0) => values,
            Derived::Plus(summand) => values.add_scalar(summand)?,
            Derived::Transposed => values.transpose(&[1, 0])?.contiguous()?,
        };
        // A weight with two derivations keeps the first.
        loaded.derived.set((derived, array.clone())).ok();
        Ok(array)
    }

    fn loaded(&self, weight: WeightId) -> Result<&Loaded> {
        self.loaded.get(weight.index()).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "step", "the decoder does not have this weight")
                .with_context("weight", weight.index())
        })
    }
}

impl Weight {
    fn bytes(&self) -> u64 {
        match self {
            Self::Dense(values) => values.byte_len() as u64,
            Self::Packed(packed) => {
                let others = packed.biases.iter().chain(&packed.order).map(Array::byte_len).sum::<usize>();
                (packed.words.byte_len() + packed.scales.byte_len() + others) as u64
            }
        }
    }
}

fn load(checkpoint: &Arc<Checkpoint>, weight: &WeightRef, treatment: Treatment) -> Result<Weight> {
    if let Some(packed) = &weight.packed {
        return load_packed(checkpoint, weight, packed, treatment);
    }
    let values = stored(checkpoint, weight)?;
    let Some(scheme) = treatment.quantize.filter(|&scheme| is_packable(weight, scheme)) else {
        return Ok(Weight::Dense(values));
    };
    let packed = Packed::quantize(&values, scheme.group_size(), scheme.bits(), scheme.mode())?;
    eval([&packed.words, &packed.scales].into_iter().chain(&packed.biases))?;
    let Some(dtype) = treatment.expand else { return Ok(Weight::Packed(packed)) };
    let expanded = compute::dequantize(&packed, dtype)?;
    eval([&expanded])?;
    Ok(Weight::Dense(expanded))
}

/// A weight that the checkpoint stores packed: as stored or in MLX's affine mode if MLX has kernels for its
/// codes, otherwise expanded if requested.
fn load_packed(
    checkpoint: &Arc<Checkpoint>,
    weight: &WeightRef,
    packed: &mlxcel_models::Packed,
    treatment: Treatment,
) -> Result<Weight> {
    let packing = packed.packing;
    if let (Some(dtype), Some(rows)) = (treatment.expand, PackedRows::new(checkpoint, weight)?) {
        return expanded(checkpoint, weight, &rows, dtype).map(Weight::Dense);
    }
    if let (Some(mode), [scales, biases @ ..]) = (Mode::of(&packing), &packed.parts[..]) {
        return Ok(Weight::Packed(Packed {
            words: stored(checkpoint, weight)?,
            scales: stored(checkpoint, scales)?,
            biases: biases.first().map(|biases| stored(checkpoint, biases)).transpose()?,
            order: None,
            group_size: packing.group_size,
            bits: packing.bits,
            mode,
        }));
    }
    if let Some(zero) = affine::zero(&packing) {
        return load_affine(checkpoint, weight, packed, zero, treatment.parameters).map(Weight::Packed);
    }
    let message = "MLX has no kernels for this packing; expand the weights with `MlxBackend::with_expanded_weights`, \
                   at the cost of memory, or use the engine `iree`";
    Err(Error::unsupported(OPERATION, message).with_context("packing", packing))
}

/// An integer weight in MLX's affine mode, with `zero` subtracted from each code.
fn load_affine(
    checkpoint: &Arc<Checkpoint>,
    weight: &WeightRef,
    packed: &mlxcel_models::Packed,
    zero: u8,
    rounded: Option<DType>,
) -> Result<Packed> {
    let packing = packed.packing;
    let part = |wanted: Part| packed.named().find(|(part, _)| *part == wanted).map(|(_, tensor)| tensor);
    let parameters = Parameters::new(&packing, zero, rounded, |wanted| match part(wanted) {
        Some(tensor) => stored(checkpoint, tensor),
        None => Err(Error::new(ErrorKind::Internal, OPERATION, "a part of a packed weight is missing")
            .with_context("packing", packing)),
    })?;
    Ok(Packed {
        words: stored(checkpoint, weight)?,
        scales: parameters.scales,
        biases: Some(parameters.biases),
        order: part(Part::Order).map(|order| stored(checkpoint, order)).transpose()?,
        group_size: packing.group_size,
        bits: packing.bits,
        mode: Mode::Affine,
    })
}

/// The values of a packed weight in type `dtype`, with columns in input order.
fn expanded(checkpoint: &Checkpoint, weight: &WeightRef, rows: &PackedRows, dtype: DType) -> Result<Array> {
    const BLOCK: usize = 256;
    let columns = weight.shape.last().copied().unwrap_or_default().max(1);
    let room = weight.elements() * size_of::<f32>();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(room).map_err(|_| Error::out_of_memory(OPERATION, room))?;
    let (count, mut scratch, mut values) = (weight.elements() / columns, Scratch::default(), Vec::new());
    for first in (0..count).step_by(BLOCK) {
        let block = first..count.min(first + BLOCK);
        values.resize(block.len() * columns, 0f32);
        rows.read(checkpoint, block, &mut scratch, &mut values)?;
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    let array = Array::from_shared(&Arc::new(bytes), &weight.shape, DType::F32)?.astype(dtype)?;
    eval([&array])?;
    Ok(array)
}

/// Whether `weight` is a matrix, or several, whose rows are a multiple of the group size.
fn is_packable(weight: &WeightRef, scheme: WeightQuantization) -> bool {
    matches!(weight.shape[..], [_, columns] | [_, _, columns] if columns.is_multiple_of(scheme.group_size()))
}

/// A tensor of the checkpoint as stored.
fn stored(checkpoint: &Arc<Checkpoint>, weight: &WeightRef) -> Result<Array> {
    // Checks the reference here, so that taking its bytes cannot fail later.
    let view = checkpoint.weight(weight)?;
    let dtype = DType::of(weight.element).ok_or_else(|| {
        Error::unsupported(OPERATION, "computing in this element type is not supported")
            .with_context("element_type", weight.element)
    })?;
    let shape = weight.stored_shape();
    match view.bytes {
        Cow::Borrowed(_) => {
            let bytes = Arc::new(Stored { checkpoint: Arc::clone(checkpoint), weight: weight.clone() });
            Array::from_shared(&bytes, &shape, dtype)
        }
        Cow::Owned(bytes) => Array::from_shared(&Arc::new(bytes), &shape, dtype),
    }
}

/// The contiguous bytes of a weight; keeps the checkpoint's files mapped.
struct Stored {
    checkpoint: Arc<Checkpoint>,
    weight: WeightRef,
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        // They existed when this was created; without them, the empty slice is too short for any use.
        match self.checkpoint.weight(&self.weight).map(|view| view.bytes) {
            Ok(Cow::Borrowed(bytes)) => bytes,
            _ => &[],
        }
    }
}
