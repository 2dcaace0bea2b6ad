//! Weights on the device: from the checkpoint's files, once, in the types that they are stored in.
//!
//! Programs whose kernels read panels get the weights in memory of their own: those that kernels alone read are put into panels on
//! their way there, by all threads of the device, piece by piece out of the mapped files. Other programs read them where they lie
//! in the file, if they lie aligned.

use std::ops::Range;
use std::sync::Arc;

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, Result};
use mlxcel_graph::weight_arguments;
use mlxcel_iree_kernels::layout::{Contents, Packer, WeightLayout, matrices};
use mlxcel_models::{Checkpoint, Decoder, WeightRef};
use mlxcel_stablehlo::TensorType;

use super::work::Progress;
use crate::ffi::{ALIGNMENT, Argument, Buffer, Constants, Device, HostMemory};
use crate::threads::share_out;

const OPERATION: &str = "load weights";

/// About how many bytes a thread takes at a time: few enough that no thread works much longer than the others, and that it
/// stops within a millisecond when it is told to.
const PIECE_BYTES: usize = 1 << 20;

/// The weights of `decoder` in the order of its programs' arguments, laid out for kernels with so many `lanes`; without any, as
/// they are stored. `kernels_read` says of each argument what it is to kernels, if they alone read it.
///
/// # Errors
///
/// [`ErrorKind::ResourceExhausted`] where memory is short, [`ErrorKind::Cancelled`], and those of reading a weight, with its
/// name.
pub(crate) fn on_device(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    decoder: &Decoder,
    lanes: Option<usize>,
    kernels_read: &[Option<Contents>],
    options: &LoadOptions,
) -> Result<Constants> {
    let tensors = Tensor::all(checkpoint, decoder, kernels_read)?;
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let progress = Progress::new(total(&tensors), options.progress.as_ref());
    let buffers = match lanes {
        Some(lanes) => in_panels(device, checkpoint, &tensors, lanes, &control, &progress)?,
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
    /// What it is to kernels, if they alone read it.
    contents: Option<Contents>,
    /// Its bytes in the mapped files, in one part or one for each matrix of a stack; none where they must be gathered.
    mapped: Option<Vec<&'a [u8]>>,
}

impl<'a> Tensor<'a> {
    /// The tensors of all weights, in the order of programs' arguments.
    fn all(
        checkpoint: &'a Checkpoint,
        decoder: &'a Decoder,
        kernels_read: &[Option<Contents>],
    ) -> Result<Vec<Self>> {
        let contents = kernels_read.iter().copied().chain(std::iter::repeat(None));
        weight_arguments(decoder)?
            .into_iter()
            .zip(contents)
            .map(|((weight, ty), contents)| {
                Ok(Self { weight, ty, contents, mapped: checkpoint.mapped_weight(weight)? })
            })
            .collect()
    }

    fn bytes(&self) -> usize {
        self.ty.bytes()
    }

    /// What puts it into panels of `lanes`; `None` where it stays as it is.
    fn packer(&self, lanes: usize) -> Option<Packer> {
        let contents = self.contents?;
        let layout = WeightLayout::of(contents, &self.ty.shape, Some(lanes));
        let rows = self.ty.shape.iter().rev().skip(1).product();
        Packer::new(layout, contents, self.bytes().checked_div(rows)?)
    }

    /// The bytes of each of its matrices; of a tensor that has none, all.
    fn matrix_bytes(&self) -> usize {
        self.bytes().checked_div(matrices(&self.ty.shape)).unwrap_or_default().max(1)
    }
}

/// The bytes of all tensors.
fn total(tensors: &[Tensor<'_>]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
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
        let (checkpoint, weight) = (Arc::clone(checkpoint), tensor.weight.clone());
        let stored = match &tensor.mapped {
            Some(parts) if parts.len() == 1 => Stored::Mapped { checkpoint, weight },
            _ => Stored::Gathered(checkpoint.weight(&weight)?.bytes.into_owned()),
        };
        let buffer = device.import(&Arc::new(stored), 0..tensor.bytes());
        let buffer = buffer.map_err(|error| error.with_context("tensor", &tensor.weight.tensor))?;
        progress.add(tensor.bytes());
        Ok(buffer)
    };
    tensors.iter().map(import).collect()
}

/// The bytes of one weight.
enum Stored {
    /// In the checkpoint's files, which they keep mapped.
    Mapped { checkpoint: Arc<Checkpoint>, weight: WeightRef },
    /// Put together from parts of those.
    Gathered(Vec<u8>),
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Gathered(bytes) => bytes,
            // It was there when this was made; were it not, no bytes would be too few for any use of them.
            Self::Mapped { checkpoint, weight } => {
                let parts = checkpoint.mapped_weight(weight).ok().flatten();
                parts.and_then(|parts| parts.first().copied()).unwrap_or_default()
            }
        }
    }
}

/// The tensors in memory of their own, matrices in panels of `lanes`.
///
/// Vectors, which are small, are copied along, so that nothing refers to the files any more. All of it is one allocation: the
/// system backs it with huge pages throughout, and it is there as a whole or not at all.
fn in_panels(
    device: &Device,
    checkpoint: &Checkpoint,
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
        let (target, behind) = rest.split_at_mut(tensor.bytes());
        let padding = behind.len().min(padding(tensor.bytes()));
        rest = &mut behind[padding..];
        cut(tensor, tensor.packer(lanes), target, &mut pieces);
    }
    share_out(device.threads(), pieces, |piece| {
        control.check(OPERATION)?;
        let len = piece.target.len();
        piece.load(checkpoint)?;
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
        let len = tensor.bytes();
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
    source: Source<'a>,
    target: &'a mut [u8],
}

enum Source<'a> {
    /// Rows in a mapped file.
    Mapped(&'a [u8]),
    /// A whole tensor that must be gathered, and the bytes of each of its matrices.
    Gathered(&'a WeightRef, usize),
}

impl Piece<'_> {
    fn load(self, checkpoint: &Checkpoint) -> Result<()> {
        match self.source {
            Source::Mapped(source) => pack(self.packer, source, self.target),
            Source::Gathered(weight, matrix) => {
                let gathered = checkpoint.weight(weight)?.bytes;
                for (source, target) in gathered.chunks(matrix).zip(self.target.chunks_mut(matrix)) {
                    pack(self.packer, source, target);
                }
            }
        }
        Ok(())
    }
}

fn pack(packer: Option<Packer>, source: &[u8], target: &mut [u8]) {
    match packer {
        Some(packer) => packer.pack(source, target),
        None => target.copy_from_slice(source),
    }
}

/// Cuts a tensor into pieces that begin where panels do.
fn cut<'a>(tensor: &Tensor<'a>, packer: Option<Packer>, target: &'a mut [u8], pieces: &mut Vec<Piece<'a>>) {
    let matrix = tensor.matrix_bytes();
    let Some(parts) = &tensor.mapped else {
        pieces.push(Piece { packer, source: Source::Gathered(tensor.weight, matrix), target });
        return;
    };
    let panel = packer.map_or(1, |packer| packer.panel_bytes()).max(1);
    let len = (PIECE_BYTES / panel).max(1).saturating_mul(panel);
    let sources = parts.iter().flat_map(|part| part.chunks(matrix));
    for (source, target) in sources.zip(target.chunks_mut(matrix)) {
        let parts = source.chunks(len).zip(target.chunks_mut(len));
        pieces.extend(parts.map(|(source, target)| Piece { packer, source: Source::Mapped(source), target }));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use mlxcel_core::CancelToken;
    use mlxcel_graph::{GraphModelOptions, decoder_program};

    use super::*;
    use crate::ffi::{DeviceOptions, Driver};
    use mlxcel_iree_kernels::weights_in_panels;

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

    /// What the arguments of `decoder`'s programs are to kernels.
    fn kernels_read(decoder: &Decoder) -> Vec<Option<Contents>> {
        let graph = GraphModelOptions::from(&LoadOptions::default());
        let (numerics, layouts) = (graph.numerics(decoder).unwrap(), graph.layouts(decoder).unwrap());
        let shape = &graph.first_programs(decoder).unwrap()[0];
        weights_in_panels(&decoder_program(decoder, numerics, &layouts, shape).unwrap().module)
    }

    /// The bytes of a tensor as panels of `lanes` have them.
    fn packed(checkpoint: &Checkpoint, tensor: &Tensor<'_>, lanes: usize) -> (Vec<u8>, Vec<u8>) {
        let stored = checkpoint.weight(tensor.weight).unwrap().bytes.into_owned();
        let mut expected = stored.clone();
        let matrix = tensor.matrix_bytes();
        for (source, target) in stored.chunks(matrix).zip(expected.chunks_mut(matrix)) {
            pack(tensor.packer(lanes), source, target);
        }
        (stored, expected)
    }

    #[test]
    fn every_tensor_is_laid_out_as_programs_are_told() {
        for (fixture, least) in [("architectures/llama", 22), ("storyteller-4bit", 66)] {
            let (checkpoint, decoder) = open(fixture);
            let tensors = Tensor::all(&checkpoint, &decoder, &kernels_read(&decoder)).unwrap();
            let control = Control::default();
            for (threads, lanes) in [(1, 16), (2, 8), (3, 4)] {
                let (device, quiet) = (device(threads), quiet(&tensors));
                let buffers = in_panels(&device, &checkpoint, &tensors, lanes, &control, &quiet).unwrap();
                let mut permuted = 0;
                for (buffer, tensor) in buffers.iter().zip(&tensors) {
                    let (stored, expected) = packed(&checkpoint, tensor, lanes);
                    permuted += usize::from(expected != stored);
                    let mut found = vec![0; buffer.len()];
                    buffer.read(0, &mut found).unwrap();
                    assert_eq!(found, expected, "{}", tensor.weight);
                    assert!(buffer.is_read_only());
                }
                assert!(permuted >= least, "{permuted} of {} were permuted", tensors.len());
            }
        }
    }

    #[test]
    fn matrices_of_experts_are_packed_each_by_itself_stacked_in_files_or_not() {
        let (checkpoint, _) = open("architectures/llama");
        let weight = WeightRef::new("experts", mlxcel_models::ElementType::F32, [3, 21, 10]);
        let ty = TensorType::new(mlxcel_stablehlo::ElementType::F32, [3, 21, 10]);
        let contents = Some(Contents::Values(ty.element));
        let bytes: Vec<u8> = (0..ty.bytes()).map(|i| (i % 251) as u8).collect();
        let apart: Vec<&[u8]> = bytes.chunks(ty.bytes() / 3).collect();
        let laid_out = [vec![&bytes[..]], apart].map(|mapped| {
            let tensor = Tensor { weight: &weight, ty: ty.clone(), contents, mapped: Some(mapped) };
            let mut target = vec![0; bytes.len()];
            let mut pieces = Vec::new();
            cut(&tensor, tensor.packer(8), &mut target, &mut pieces);
            pieces.into_iter().for_each(|piece| piece.load(&checkpoint).unwrap());
            target
        });
        assert_eq!(laid_out[0], laid_out[1]);
        // Of each matrix two panels, and the rows behind them as they are stored.
        let (matrix, behind) = (21 * 40, 16 * 40);
        for (source, target) in bytes.chunks(matrix).zip(laid_out[0].chunks(matrix)) {
            assert_eq!(source[behind..], target[behind..]);
            // The first inputs of the first eight rows.
            let first: Vec<u8> = (0..8).flat_map(|row| source[row * 40..][..4].to_vec()).collect();
            assert_eq!(target[..32], first);
        }
    }

    #[test]
    fn without_kernels_every_tensor_is_as_stored() {
        let (checkpoint, decoder) = open("storyteller-4bit");
        let tensors = Tensor::all(&checkpoint, &decoder, &[]).unwrap();
        let control = Control::default();
        let buffers = as_stored(&device(1), &checkpoint, &tensors, &control, &quiet(&tensors)).unwrap();
        for (buffer, tensor) in buffers.iter().zip(&tensors) {
            let mut found = vec![0; buffer.len()];
            buffer.read(0, &mut found).unwrap();
            assert_eq!(found, &*checkpoint.weight(tensor.weight).unwrap().bytes, "{}", tensor.weight);
        }
    }

    #[test]
    fn the_files_are_let_go_of_when_weights_have_memory_of_their_own() {
        let (checkpoint, decoder) = open("architectures/llama");
        let device = device(1);
        let (read, options) = (kernels_read(&decoder), LoadOptions::default());
        let load = |lanes| on_device(&device, &checkpoint, &decoder, lanes, &read, &options).unwrap();
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
            on_device(&device(2), &checkpoint, &decoder, lanes, &kernels_read(&decoder), &options).unwrap();
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
            let error =
                on_device(&device(2), &checkpoint, &decoder, lanes, &kernels_read(&decoder), &options)
                    .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(reports.load(Ordering::SeqCst) <= 2, "one for each thread at most");
        }
    }
}
