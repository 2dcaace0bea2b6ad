//! Weights on the device: from the checkpoint's files, once, in the types that they are stored in.
//!
//! Programs whose kernels read panels get the weights in memory of their own: they are put into panels on their way there, by all
//! threads of the device, piece by piece out of the mapped file. Other programs read them where they lie in the file, if they
//! lie aligned.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, Result};
use mlxcel_graph::weight_arguments;
use mlxcel_models::{Checkpoint, Decoder, WeightRef};
use mlxcel_stablehlo::TensorType;

use super::work::Progress;
use crate::ffi::{ALIGNMENT, Argument, Buffer, Constants, Device, HostMemory};
use crate::lowering::layout::{Contents, Packer, WeightLayout, matrices};
use crate::threads::share_out;

const OPERATION: &str = "load weights";

/// About how many bytes a thread takes at a time: few enough that no thread works much longer than the others, and that it
/// stops within a millisecond when it is told to.
const PIECE_BYTES: usize = 1 << 20;

/// The weights of `decoder` in the order of its programs' arguments, laid out for kernels with so many `lanes`; without any, as
/// they are stored.
///
/// # Errors
///
/// [`ErrorKind::ResourceExhausted`] where memory is short, [`ErrorKind::Cancelled`], and those of reading a weight, with its
/// name.
pub(super) fn on_device(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    decoder: &Decoder,
    lanes: Option<usize>,
    options: &LoadOptions,
) -> Result<Constants> {
    let tensors = Tensor::all(checkpoint, decoder)?;
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let progress = Progress::new(total(&tensors), options.progress.as_ref());
    let buffers = match lanes {
        Some(lanes) => in_panels(device, &tensors, lanes, &control, &progress)?,
        None => as_stored(device, checkpoint, &tensors, &control, &progress)?,
    };
    let arguments: Vec<_> = buffers
        .iter()
        .zip(&tensors)
        .map(|(buffer, tensor)| Argument::new(buffer, &tensor.ty.shape, tensor.ty.element))
        .collect();
    Constants::new(&arguments)
}

/// An argument of programs, and where its bytes are.
struct Tensor<'a> {
    weight: &'a WeightRef,
    ty: TensorType,
    contents: Contents,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    /// The tensors of all weights, in the order of programs' arguments.
    fn all(checkpoint: &'a Checkpoint, decoder: &'a Decoder) -> Result<Vec<Self>> {
        let packed = decoder.weights().flat_map(|weight| {
            let bits = weight.quantization.as_ref().map(|quantization| quantization.bits);
            weight.tensors().enumerate().map(move |(index, _)| bits.map(|bits| (bits, index)))
        });
        weight_arguments(decoder)?
            .into_iter()
            .zip(packed)
            .map(|((weight, ty), packed)| {
                let contents = match packed {
                    None => Contents::Values(ty.element),
                    Some((bits, 0)) => Contents::Packed { bits },
                    Some(_) => Contents::Groups(ty.element),
                };
                Ok(Self { weight, ty, contents, bytes: checkpoint.weight(weight)?.bytes })
            })
            .collect()
    }

    /// What puts it into panels of `lanes`; `None` where it stays as it is.
    fn packer(&self, lanes: usize) -> Option<Packer> {
        let layout = WeightLayout::of(self.contents, &self.ty.shape, Some(lanes));
        let rows = self.ty.shape.iter().rev().skip(1).product();
        Packer::new(layout, self.contents, self.bytes.len().checked_div(rows)?)
    }

    /// The bytes of each of its matrices; of a tensor that has none, all.
    fn matrix_bytes(&self) -> usize {
        self.bytes.len().checked_div(matrices(&self.ty.shape)).unwrap_or_default().max(1)
    }
}

/// The bytes of all tensors.
fn total(tensors: &[Tensor<'_>]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum()
}

/// The tensors where they lie in the mapped files, if they lie aligned and the device reads host memory; copies of others.
fn as_stored(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    tensors: &[Tensor<'_>],
    control: &Control<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Buffer>> {
    let import = |tensor: &Tensor<'_>| {
        control.check(OPERATION)?;
        let range = 0..tensor.bytes.len();
        let buffer = match &tensor.bytes {
            Cow::Borrowed(_) => {
                let stored = Stored { checkpoint: Arc::clone(checkpoint), weight: tensor.weight.clone() };
                device.import(&Arc::new(stored), range)
            }
            Cow::Owned(bytes) => device.import(&Arc::new(bytes.clone()), range),
        };
        let buffer = buffer.map_err(|error| error.with_context("tensor", &tensor.weight.tensor))?;
        progress.add(tensor.bytes.len());
        Ok(buffer)
    };
    tensors.iter().map(import).collect()
}

/// The bytes of one weight that lie together in a file, which they keep mapped.
struct Stored {
    checkpoint: Arc<Checkpoint>,
    weight: WeightRef,
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        // It was there when this was made; were it not, no bytes would be too few for any use of them.
        match self.checkpoint.weight(&self.weight).map(|view| view.bytes) {
            Ok(Cow::Borrowed(bytes)) => bytes,
            Ok(Cow::Owned(_)) | Err(_) => &[],
        }
    }
}

/// The tensors in memory of their own, matrices in panels of `lanes`.
///
/// Vectors, which are small, are copied along, so that nothing refers to the files any more. All of it is one allocation: the
/// system backs it with huge pages throughout, and it is there as a whole or not at all.
fn in_panels(
    device: &Device,
    tensors: &[Tensor<'_>],
    lanes: usize,
    control: &Control<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Buffer>> {
    let (places, len) = places(tensors)?;
    let mut memory = HostMemory::for_filling(len)?;
    let mut pieces = Vec::new();
    let mut rest = memory.as_mut_slice();
    for tensor in tensors {
        let (target, behind) = rest.split_at_mut(tensor.bytes.len());
        let padding = behind.len().min(padding(tensor.bytes.len()));
        rest = &mut behind[padding..];
        cut(tensor, tensor.packer(lanes), target, &mut pieces);
    }
    share_out(device.threads(), pieces, |piece| {
        control.check(OPERATION)?;
        let len = piece.source.len();
        piece.load();
        progress.add(len);
        Ok(())
    })?;
    let memory = Arc::new(memory);
    let import = |(place, tensor): (Range<usize>, &Tensor<'_>)| {
        device.import(&memory, place).map_err(|error| error.with_context("tensor", &tensor.weight.tensor))
    };
    places.into_iter().zip(tensors).map(import).collect()
}

/// Where each tensor goes in one allocation, and the size of that.
fn places(tensors: &[Tensor<'_>]) -> Result<(Vec<Range<usize>>, usize)> {
    let mut end = 0usize;
    let mut places = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let len = tensor.bytes.len();
        let next = len.checked_add(padding(len)).and_then(|len| end.checked_add(len));
        let Some(next) = next else {
            return Err(Error::new(
                ErrorKind::ResourceExhausted,
                OPERATION,
                "the weights are larger than memory can be",
            )
            .with_context("tensor", &tensor.weight.tensor));
        };
        places.push(end..end + len);
        end = next;
    }
    Ok((places, end))
}

/// How many bytes lie between a tensor of `len` and the next, which begins aligned.
fn padding(len: usize) -> usize {
    (ALIGNMENT - len % ALIGNMENT) % ALIGNMENT
}

/// Some rows of a tensor, or all of a small one.
struct Piece<'a> {
    packer: Option<Packer>,
    source: &'a [u8],
    target: &'a mut [u8],
}

impl Piece<'_> {
    fn load(self) {
        match self.packer {
            Some(packer) => packer.pack(self.source, self.target),
            None => self.target.copy_from_slice(self.source),
        }
    }
}

/// Cuts a tensor into pieces that begin where panels do.
fn cut<'a>(
    tensor: &'a Tensor<'_>,
    packer: Option<Packer>,
    target: &'a mut [u8],
    pieces: &mut Vec<Piece<'a>>,
) {
    let panel = packer.map_or(1, |packer| packer.panel_bytes()).max(1);
    let len = (PIECE_BYTES / panel).max(1).saturating_mul(panel);
    let matrix = tensor.matrix_bytes();
    for (source, target) in tensor.bytes.chunks(matrix).zip(target.chunks_mut(matrix)) {
        let parts = source.chunks(len).zip(target.chunks_mut(len));
        pieces.extend(parts.map(|(source, target)| Piece { packer, source, target }));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use mlxcel_core::CancelToken;

    use super::*;
    use crate::ffi::{DeviceOptions, Driver};

    fn open(fixture: &str) -> (Arc<Checkpoint>, Decoder) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
        let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
        let decoder = checkpoint.decoder().unwrap();
        (checkpoint, decoder)
    }

    fn device(threads: usize) -> Device {
        let driver = Driver::LocalTask;
        Device::open(&DeviceOptions { driver, threads: Some(threads), ..Default::default() }).unwrap()
    }

    fn quiet(tensors: &[Tensor<'_>]) -> Progress<'static> {
        Progress::new(total(tensors), None)
    }

    #[test]
    fn every_tensor_is_laid_out_as_programs_are_told() {
        for fixture in ["architectures/llama", "storyteller-4bit"] {
            let (checkpoint, decoder) = open(fixture);
            let tensors = Tensor::all(&checkpoint, &decoder).unwrap();
            let control = Control::default();
            for (threads, lanes) in [(1, 16), (2, 8), (3, 4)] {
                let buffers =
                    in_panels(&device(threads), &tensors, lanes, &control, &quiet(&tensors)).unwrap();
                let mut permuted = 0;
                for (buffer, tensor) in buffers.iter().zip(&tensors) {
                    let mut expected = vec![0; tensor.bytes.len()];
                    match tensor.packer(lanes) {
                        Some(packer) => packer.pack(&tensor.bytes, &mut expected),
                        None => expected.copy_from_slice(&tensor.bytes),
                    }
                    permuted += usize::from(expected != *tensor.bytes);
                    let mut found = vec![0; buffer.len()];
                    buffer.read(0, &mut found).unwrap();
                    assert_eq!(found, expected, "{}", tensor.weight);
                    assert!(buffer.is_read_only());
                }
                assert!(permuted >= 22, "{permuted} of {} were permuted", tensors.len());
            }
        }
    }

    #[test]
    fn without_kernels_every_tensor_is_as_stored() {
        let (checkpoint, decoder) = open("storyteller-4bit");
        let tensors = Tensor::all(&checkpoint, &decoder).unwrap();
        let control = Control::default();
        let buffers = as_stored(&device(1), &checkpoint, &tensors, &control, &quiet(&tensors)).unwrap();
        for (buffer, tensor) in buffers.iter().zip(&tensors) {
            let mut found = vec![0; buffer.len()];
            buffer.read(0, &mut found).unwrap();
            assert_eq!(found, *tensor.bytes, "{}", tensor.weight);
        }
    }

    #[test]
    fn the_files_are_let_go_of_when_weights_have_memory_of_their_own() {
        let (checkpoint, decoder) = open("architectures/llama");
        let device = device(1);
        let load = |lanes| on_device(&device, &checkpoint, &decoder, lanes, &LoadOptions::default()).unwrap();
        let _constants = load(Some(8));
        assert_eq!(Arc::strong_count(&checkpoint), 1);
        let _constants = load(None);
        assert!(Arc::strong_count(&checkpoint) > 1, "aligned ones are used in place");
    }

    #[test]
    fn progress_rises_to_all_bytes() {
        let (checkpoint, decoder) = open("architectures/llama");
        let last = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&last);
        let options = LoadOptions::default().with_progress(move |progress| {
            let before = seen.swap(progress.done, Ordering::SeqCst);
            assert!(before < progress.done && progress.done <= progress.total);
        });
        for lanes in [Some(16), None] {
            last.store(0, Ordering::SeqCst);
            on_device(&device(2), &checkpoint, &decoder, lanes, &options).unwrap();
            assert_eq!(last.load(Ordering::SeqCst), decoder.weight_bytes());
        }
    }

    #[test]
    fn a_cancelled_load_stops_between_pieces() {
        let (checkpoint, decoder) = open("architectures/llama");
        for lanes in [Some(16), None] {
            let cancel = CancelToken::new();
            let reports = Arc::new(AtomicU64::new(0));
            let (seen, token) = (Arc::clone(&reports), cancel.clone());
            let options = LoadOptions::default().with_cancel(cancel).with_progress(move |_| {
                seen.fetch_add(1, Ordering::SeqCst);
                token.cancel();
            });
            let error = on_device(&device(2), &checkpoint, &decoder, lanes, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(reports.load(Ordering::SeqCst) <= 2, "one for each thread at most");
        }
    }
}
