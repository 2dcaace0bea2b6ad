//! Weights on the device: from the checkpoint's files, once, in the types that they are stored in, laid out
//! as the lowering of the model's programs says.
//!
//! Programs whose kernels read panels get the weights in memory of their own: those that kernels alone read
//! are put into panels on their way there, by all threads of the device, piece by piece out of the mapped
//! files. Other programs read them where they lie in the file, if they lie there as they are and aligned.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, Result};
use mlxcel_graph::WeightArgument;
use mlxcel_iree_kernels::layout::{Packer, matrices};
use mlxcel_iree_kernels::{Layouts, Panels};
use mlxcel_iree_runtime::{ALIGNMENT, Argument, Buffer, Constants, Device, HostMemory};
use mlxcel_iree_target::laid_out::Places;
use mlxcel_iree_target::threads::share_out;
use mlxcel_models::{Checkpoint, WeightRef};

use super::pieces::{Piece, cut, targets};
use super::work::Progress;

pub(super) const OPERATION: &str = "load weights";

/// The weights of a model, the leading `arguments` of its programs, laid out as `layouts` say.
///
/// # Errors
///
/// [`ErrorKind::ResourceExhausted`] if memory is short, [`ErrorKind::Cancelled`], and those of reading a
/// weight, with its name.
pub(crate) fn on_device(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    arguments: &[WeightArgument],
    layouts: &Layouts,
    options: &LoadOptions,
) -> Result<Constants> {
    let tensors = Tensor::all(checkpoint, arguments, layouts)?;
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let progress = Progress::new(total(&tensors), options.progress.as_ref());
    let buffers = load(device, checkpoint, &tensors, layouts.is_as_stored(), &control, &progress)?;
    constants(&buffers, arguments)
}

/// Weights that lie in one place as programs take them: those of a bundle, or kept from an earlier time.
pub(crate) struct LaidOutWeights {
    pub(crate) content: Arc<dyn AsRef<[u8]> + Send + Sync>,
    pub(crate) places: Places,
}

/// The weights of a model that are already laid out. On the CPU nothing is copied, and processes share the
/// pages.
///
/// # Errors
///
/// [`ErrorKind::Cancelled`], and those of other devices, which take a copy.
pub(crate) fn in_place(
    device: &Device,
    LaidOutWeights { content, places }: &LaidOutWeights,
    arguments: &[WeightArgument],
    options: &LoadOptions,
) -> Result<Constants> {
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let bytes = arguments.iter().map(|argument| argument.ty.bytes() as u64).sum();
    let progress = Progress::new(bytes, options.progress.as_ref());
    let import = |(range, argument): (Range<u64>, &WeightArgument)| {
        control.check(OPERATION)?;
        // The content is in memory, so places in it are numbers of this machine.
        let buffer = device.import(content, range.start as usize..range.end as usize);
        progress.add(argument.ty.bytes());
        buffer.map_err(|error| error.with_context("tensor", &argument.tensor.tensor))
    };
    let buffers = places.ranges().zip(arguments).map(import).collect::<Result<Vec<_>>>()?;
    constants(&buffers, arguments)
}

/// Buffers as the arguments that they are.
fn constants(buffers: &[Buffer], arguments: &[WeightArgument]) -> Result<Constants> {
    let argument = |(buffer, argument)| {
        let WeightArgument { ty, .. }: &WeightArgument = argument;
        Argument::new(buffer, &ty.shape, ty.element)
    };
    Constants::new(&buffers.iter().zip(arguments).map(argument).collect::<Vec<_>>())
}

/// An argument of programs, and where its bytes are.
pub(super) struct Tensor<'a> {
    pub(super) argument: &'a WeightArgument,
    /// The panels that programs take it in, if they do.
    pub(super) panels: Option<Panels>,
    /// Its bytes in the mapped files, in one part or one for each matrix of a stack; none where they are not
    /// there as they are.
    pub(super) mapped: Option<Vec<&'a [u8]>>,
}

impl<'a> Tensor<'a> {
    /// The tensors of all weights, in the order of programs' arguments.
    pub(super) fn all(
        checkpoint: &'a Checkpoint,
        arguments: &'a [WeightArgument],
        layouts: &Layouts,
    ) -> Result<Vec<Self>> {
        let tensor = |argument: &'a WeightArgument| {
            let mapped = checkpoint.mapped_weight(&argument.tensor)?;
            Ok(Self { argument, panels: layouts.get(&argument.name), mapped })
        };
        arguments.iter().map(tensor).collect()
    }

    fn bytes(&self) -> usize {
        self.argument.ty.bytes()
    }

    /// What puts it into its panels; `None` where it stays as it is.
    pub(super) fn packer(&self) -> Option<Packer> {
        self.panels?.packer(&self.argument.ty.shape, self.bytes())
    }

    /// The bytes of each of its matrices; of a tensor that has none, all.
    pub(super) fn matrix_bytes(&self) -> usize {
        self.bytes().checked_div(matrices(&self.argument.ty.shape)).unwrap_or_default().max(1)
    }

    /// The bytes of each of its rows; of a vector, all.
    pub(super) fn row_bytes(&self) -> usize {
        let rows = self.argument.ty.shape.iter().rev().skip(1).product();
        self.bytes().checked_div(rows).unwrap_or_default().max(1)
    }

    /// Whether it lies in one part of one file.
    fn is_in_one_place(&self) -> bool {
        self.mapped.as_ref().is_some_and(|parts| parts.len() == 1)
    }

    /// The error for a weight that does not have the length that its reference gives it.
    pub(super) fn misfit(&self) -> Error {
        let message = format!("the parts of {} do not have {} bytes", self.argument.tensor, self.bytes());
        self.named(Error::new(ErrorKind::Internal, OPERATION, message))
    }

    fn named(&self, error: Error) -> Error {
        error.with_context("tensor", &self.argument.tensor.tensor)
    }
}

/// The bytes of all tensors.
pub(super) fn total(tensors: &[Tensor<'_>]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
}

/// One weight in the checkpoint's files, which it keeps mapped.
struct InFile {
    checkpoint: Arc<Checkpoint>,
    weight: WeightRef,
}

impl AsRef<[u8]> for InFile {
    fn as_ref(&self) -> &[u8] {
        // It was there when this was made; were it not, no bytes would be too few for any use of them.
        let parts = self.checkpoint.mapped_weight(&self.weight).ok().flatten();
        parts.and_then(|parts| parts.first().copied()).unwrap_or_default()
    }
}

/// The tensors on the device: `in_place` those that files hold as they are, all others in memory of their
/// own.
///
/// If not in place, vectors, which are small, are copied along, so that nothing refers to the files any more.
/// All that memory is one allocation: the system backs it with huge pages throughout, and it is there as a
/// whole or not at all.
fn load(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    tensors: &[Tensor<'_>],
    in_place: bool,
    control: &Control<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Buffer>> {
    let stays = |tensor: &Tensor<'_>| in_place && tensor.is_in_one_place();
    let (places, len) = places(tensors, stays)?;
    let mut memory = HostMemory::for_filling(len)?;
    let mut pieces = Vec::new();
    for (tensor, place) in tensors.iter().zip(&places) {
        place.as_ref().map_or(Ok(()), |place| cut(tensor, place, &mut pieces))?;
    }
    let pieces = targets(memory.as_mut_slice(), 0, pieces);
    fill(device.threads(), checkpoint, pieces, control, progress)?;
    let memory = Arc::new(memory);
    let import = |(place, tensor): (Option<Range<usize>>, &Tensor<'_>)| {
        if let Some(place) = place {
            return device.import(&memory, place).map_err(|error| tensor.named(error));
        }
        control.check(OPERATION)?;
        let weight = tensor.argument.tensor.clone();
        let file = Arc::new(InFile { checkpoint: Arc::clone(checkpoint), weight });
        let buffer = device.import(&file, 0..tensor.bytes()).map_err(|error| tensor.named(error))?;
        progress.add(tensor.bytes());
        Ok(buffer)
    };
    places.into_iter().zip(tensors).map(import).collect()
}

/// Loads pieces into their targets on so many threads.
pub(super) fn fill(
    threads: usize,
    checkpoint: &Checkpoint,
    pieces: Vec<(Piece<'_>, &mut [u8])>,
    control: &Control<'_>,
    progress: &Progress<'_>,
) -> Result<()> {
    // Scratch memory: no more of it than threads.
    let rooms = Mutex::new(Vec::new());
    let rooms = || rooms.lock().unwrap_or_else(PoisonError::into_inner);
    share_out(OPERATION, threads, pieces, |(piece, target)| {
        control.check(OPERATION)?;
        let len = target.len();
        let mut room = rooms().pop().unwrap_or_default();
        piece.load(target, checkpoint, &mut room)?;
        rooms().push(room);
        progress.add(len);
        Ok(())
    })
}

/// Where each tensor goes in one allocation, none for those that stay, and the size of that.
fn places(
    tensors: &[Tensor<'_>],
    stays: impl Fn(&Tensor<'_>) -> bool,
) -> Result<(Vec<Option<Range<usize>>>, usize)> {
    let mut end = 0usize;
    let mut places = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if stays(tensor) {
            places.push(None);
            continue;
        }
        let len = tensor.bytes();
        let next = len.checked_add(padding(len)).and_then(|len| end.checked_add(len));
        let Some(next) = next else {
            let message = "the weights exceed the address space";
            return Err(tensor.named(Error::new(ErrorKind::ResourceExhausted, OPERATION, message)));
        };
        places.push(Some(end..end + len));
        end = next;
    }
    Ok((places, end))
}

/// How many bytes lie between a tensor of `len` and the next, which begins aligned.
fn padding(len: usize) -> usize {
    (ALIGNMENT - len % ALIGNMENT) % ALIGNMENT
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use mlxcel_core::{CancelToken, Precision};
    use mlxcel_graph::{GraphModelOptions, ProgramWriter, weight_arguments};
    use mlxcel_iree_kernels::layout::TensorRole;
    use mlxcel_iree_kernels::{Hardware, Instructions, VectorSet, lower};
    use mlxcel_stablehlo::{ElementType, TensorType};

    use super::*;
    use mlxcel_iree_runtime::{DeviceOptions, Driver};

    const SETS: [VectorSet; 3] = [VectorSet::Avx512, VectorSet::Avx2, VectorSet::Neon];

    /// A checkpoint, and the weights that its programs take.
    fn open(fixture: &str) -> (Arc<Checkpoint>, Vec<WeightArgument>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
        let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
        let arguments = weight_arguments(&checkpoint.decoder().unwrap()).unwrap();
        (checkpoint, arguments)
    }

    fn device(threads: usize) -> Device {
        let driver = Driver::LocalTask;
        Device::open(&DeviceOptions { driver, threads: Some(threads), ..Default::default() }).unwrap()
    }

    fn quiet(tensors: &[Tensor<'_>]) -> Progress<'static> {
        Progress::new(total(tensors), None)
    }

    /// How programs of a checkpoint want their weights.
    fn layouts(checkpoint: &Checkpoint, set: VectorSet) -> Layouts {
        let (decoder, graph) = (checkpoint.decoder().unwrap(), GraphModelOptions::default());
        let shape = &graph.first_programs(&decoder).unwrap()[0];
        let program = ProgramWriter::new(decoder, &graph).unwrap().program(shape).unwrap();
        let hardware = Hardware::Processor(Some(Instructions::new(set)));
        lower(&program.module, hardware, Precision::Native).unwrap().layouts
    }

    /// Holds what lies on the device to what is stored, put into panels; how many tensors that changed.
    fn check(checkpoint: &Checkpoint, tensors: &[Tensor<'_>], buffers: &[Buffer]) -> usize {
        let mut permuted = 0;
        assert_eq!(buffers.len(), tensors.len());
        for (buffer, tensor) in buffers.iter().zip(tensors) {
            let stored = checkpoint.weight(&tensor.argument.tensor).unwrap().bytes.into_owned();
            let panels = tensor.panels;
            let expected = panels.map(|panels| panels.pack(&tensor.argument.ty.shape, &stored));
            permuted += usize::from(expected.as_ref().is_some_and(|expected| *expected != stored));
            let mut found = vec![0; buffer.size()];
            buffer.read(0, &mut found).unwrap();
            assert!(found == expected.unwrap_or(stored), "{}", tensor.argument.name);
        }
        permuted
    }

    #[test]
    fn every_tensor_has_the_layout_of_its_programs() {
        for (fixture, least) in
            [("architectures/llama", 22), ("storyteller-4bit", 66), ("formats/gguf-llama-q8_0", 20)]
        {
            let (checkpoint, arguments) = open(fixture);
            for (threads, set) in [1, 2, 3].into_iter().zip(SETS) {
                let layouts = layouts(&checkpoint, set);
                let tensors = Tensor::all(&checkpoint, &arguments, &layouts).unwrap();
                let control = Control::default();
                let quiet = quiet(&tensors);
                let buffers = load(&device(threads), &checkpoint, &tensors, false, &control, &quiet).unwrap();
                let permuted = check(&checkpoint, &tensors, &buffers);
                assert!(buffers.iter().all(Buffer::is_read_only));
                assert!(permuted >= least, "{fixture}: {permuted} of {} were permuted", tensors.len());
            }
        }
    }

    #[test]
    fn expert_matrices_are_packed_one_by_one_whether_stacked_or_not() {
        let (checkpoint, mut arguments) = open("architectures/llama");
        let panels = Panels { lanes: 8, contents: TensorRole::Dense(ElementType::F32) };
        let mut argument = arguments.remove(0);
        argument.tensor = WeightRef::new("experts", mlxcel_models::ElementType::F32, [3, 21, 10]);
        argument.ty = TensorType::new(ElementType::F32, [3, 21, 10]);
        let bytes: Vec<u8> = (0..argument.ty.bytes()).map(|i| (i % 251) as u8).collect();
        let apart: Vec<&[u8]> = bytes.chunks(argument.ty.bytes() / 3).collect();
        let laid_out = [vec![&bytes[..]], apart].map(|mapped| {
            let tensor = Tensor { argument: &argument, panels: Some(panels), mapped: Some(mapped) };
            let mut target = vec![0; bytes.len()];
            let mut pieces = Vec::new();
            cut(&tensor, &(0..bytes.len()), &mut pieces).unwrap();
            for (piece, target) in targets(&mut target, 0, pieces) {
                piece.load(target, &checkpoint, &mut Vec::new()).unwrap();
            }
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

    /// StableLM 2 with `qk_layernorm` has a norm of its own for each head, each a tensor: together they are
    /// one matrix.
    #[test]
    fn a_stack_of_vectors_is_copied_vector_by_vector() {
        let (checkpoint, mut arguments) = open("architectures/llama");
        let mut argument = arguments.remove(0);
        let norms =
            |head: usize| WeightRef::new(format!("norms.{head}"), mlxcel_models::ElementType::F32, [4]);
        argument.tensor = norms(0).stacked((1..6).map(norms));
        argument.ty = TensorType::new(ElementType::F32, [6, 4]);
        let bytes: Vec<u8> = (0..argument.ty.bytes()).map(|i| i as u8).collect();
        let tensor = |bytes| {
            let parts = <[u8]>::chunks(bytes, 16).collect();
            Tensor { argument: &argument, panels: None, mapped: Some(parts) }
        };
        let (mut target, mut pieces) = (vec![0; bytes.len()], Vec::new());
        cut(&tensor(&bytes), &(0..bytes.len()), &mut pieces).unwrap();
        assert_eq!(pieces.len(), 6);
        for (piece, target) in targets(&mut target, 0, pieces) {
            piece.load(target, &checkpoint, &mut Vec::new()).unwrap();
        }
        assert_eq!(target, bytes);
        for wrong in [&bytes[1..], &[&bytes[..], &[0]].concat()] {
            let error = cut(&tensor(wrong), &(0..bytes.len()), &mut Vec::new()).unwrap_err();
            assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Internal, Some("norms.0")));
        }
    }

    #[test]
    fn without_kernels_tensors_keep_the_stored_layout() {
        for fixture in ["storyteller-4bit", "formats/gguf-llama-q8_0"] {
            let (checkpoint, arguments) = open(fixture);
            let tensors = Tensor::all(&checkpoint, &arguments, &Layouts::default()).unwrap();
            let control = Control::default();
            let buffers = load(&device(2), &checkpoint, &tensors, true, &control, &quiet(&tensors)).unwrap();
            assert_eq!(check(&checkpoint, &tensors, &buffers), 0);
        }
    }

    #[test]
    fn files_are_unmapped_after_weights_are_repacked() {
        let (checkpoint, arguments) = open("architectures/llama");
        let (device, options) = (device(1), LoadOptions::default());
        let load =
            |layouts: &Layouts| on_device(&device, &checkpoint, &arguments, layouts, &options).unwrap();
        let _constants = load(&layouts(&checkpoint, VectorSet::Avx2));
        assert_eq!(Arc::strong_count(&checkpoint), 1);
        let _constants = load(&Layouts::default());
        assert!(Arc::strong_count(&checkpoint) > 1, "aligned ones are used in place");
    }

    #[test]
    fn load_progress_reaches_all_bytes() {
        let (checkpoint, arguments) = open("architectures/llama");
        let last = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&last);
        let options = LoadOptions::default().with_progress(move |progress| {
            let before = seen.swap(progress.done, Ordering::SeqCst);
            assert!(before < progress.done && progress.done <= progress.total);
        });
        for layouts in [layouts(&checkpoint, VectorSet::Avx512), Layouts::default()] {
            last.store(0, Ordering::SeqCst);
            on_device(&device(2), &checkpoint, &arguments, &layouts, &options).unwrap();
            assert_eq!(last.load(Ordering::SeqCst), checkpoint.decoder().unwrap().weight_bytes());
        }
    }

    #[test]
    fn a_cancelled_load_stops_at_the_next_tensor_piece() {
        let (checkpoint, arguments) = open("architectures/llama");
        for layouts in [layouts(&checkpoint, VectorSet::Avx512), Layouts::default()] {
            let cancel = CancelToken::new();
            let reports = Arc::new(AtomicU64::new(0));
            let (seen, token) = (Arc::clone(&reports), cancel.clone());
            let options = LoadOptions::default().with_cancel(cancel).with_progress(move |_| {
                seen.fetch_add(1, Ordering::SeqCst);
                token.cancel();
            });
            let error = on_device(&device(2), &checkpoint, &arguments, &layouts, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(reports.load(Ordering::SeqCst) <= 2, "one for each thread at most");
        }
    }
}
