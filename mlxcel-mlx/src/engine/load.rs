//! Loads a model from a checkpoint and options.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use mlxcel_core::{
    Capabilities, CheckedOptions, Error, ErrorKind, FaultPoint, LoadOptions, MemoryEstimate, ModelInfo,
    ModelSource, OptionSupport, Precision, Result, SamplingFields,
};
use mlxcel_models::{Checkpoint, Decoder, ElementType, FeatureSet};

use super::adapters::{self, AdapterRoom};
use super::compute::Compute;
use super::model::{MlxModel, Shared};
use super::network::{Network, Numerics};
use super::state::Layout;
use super::thread::Engine;
use super::weights::{Treatment, Weights};
use super::worker::Worker;
use super::{MlxBackend, NAME};
use crate::array::{Array, DType};
use crate::device::Device;
use crate::kernels::Kernels;

const OPERATION: &str = "load model";

/// The default number of sequences of a session: unused ones take no memory.
const SEQUENCES: usize = 16;

/// The memory that a model takes with the options of `backend`: weights that it would quantize count as they
/// are stored.
pub(super) fn estimate(
    backend: &MlxBackend,
    source: &ModelSource,
    options: &LoadOptions,
) -> Result<MemoryEstimate> {
    let chunk = at_least_one("prefill_chunk", backend.prefill_chunk)?;
    let mut decoder = Checkpoint::for_options(source, options)?.decoder_for(options)?;
    let support = support(&decoder);
    let CheckedOptions { capacity, sequences, device, adapters, .. } = support.check(options)?;
    let numerics = numerics(options.precision, self::device(device)?, &decoder)?;
    let states = Layout::new(&decoder, numerics.kv, capacity).kept_bytes(capacity).unwrap_or(usize::MAX);
    let caches = (states as u64).saturating_mul(sequences as u64);
    let tokens = chunk.min(capacity).saturating_add(sequences);
    if backend.expand_quantized {
        let exact = options.precision == Precision::Exact;
        decoder = decoder.expanded(if exact { ElementType::F32 } else { decoder.element_type });
    }
    let adapters = adapters.map_or(0, |room| adapters::bytes(&decoder, room, numerics.activation));
    let scratch = decoder.pass_bytes(tokens, sequences);
    Ok(MemoryEstimate::new(decoder.weight_bytes(), caches, scratch).with_adapters(adapters))
}

/// The options that a model of `decoder` supports. MLX's dimensions have 31 bits.
fn support(decoder: &Decoder) -> OptionSupport<'static> {
    OptionSupport::new(decoder.context_length.min(i32::MAX as usize), SEQUENCES)
        .with_precisions(&[Precision::Exact, Precision::Native])
        .with_devices(&["cpu", "gpu"])
        .with_adapters()
        .with_draft_heads()
}

/// Loads a model with the options of `backend`.
pub(super) fn load(backend: &MlxBackend, source: &ModelSource, options: &LoadOptions) -> Result<MlxModel> {
    let started = Instant::now();
    let chunk = at_least_one("prefill_chunk", backend.prefill_chunk)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let checkpoint = Arc::new(Checkpoint::for_options(source, options)?);
    let decoder = checkpoint.decoder_for(options)?;
    // The operations cover all features.
    decoder.require(&FeatureSet::all(), NAME)?;
    let support = support(&decoder);
    let CheckedOptions { capacity, sequences, threads, device, adapters, .. } = support.check(options)?;
    let threads = threads.unwrap_or(cores);
    let device = self::device(device)?;
    let numerics = numerics(options.precision, device, &decoder)?;
    let rewind = Layout::new(&decoder, numerics.kv, capacity).is_rewindable();
    let epochs = decoder.rope_epochs();
    let (generates, types) = (decoder.head.is_some(), decoder.token_types());
    let treatment = Treatment {
        expand: backend.expand_quantized.then_some(match options.precision {
            Precision::Exact => DType::F32,
            _ => numerics.kv,
        }),
        quantize: backend.quantization,
        // Kernels compute in the widest type of their operands, which should stay float16 or bfloat16.
        parameters: Some(numerics.activation).filter(|&activation| activation != DType::F32),
    };

    let kernels = device == Device::Cpu && backend.cpu_kernels;
    let compute = Compute::new(kernels.then(|| Kernels::new(threads)));
    let info = info(backend, options, &checkpoint, &decoder, capacity);
    let (vocabulary, hidden) = (decoder.vocabulary_size, decoder.hidden_size);
    let (is_draft_head, returned) = (decoder.input_states.is_some(), decoder.output_state_width());
    let look_ahead = backend.look_ahead.unwrap_or(device == Device::Gpu);
    let faults = backend.faults.clone();
    let room = adapters.map(|room| AdapterRoom::new(room, decoder.clone()));
    let load_options = options.clone();
    let is_exact_on_gpu = options.precision == Precision::Exact && device == Device::Gpu;
    let worker = Worker::start(move || {
        device.select()?;
        if is_exact_on_gpu {
            check_products()?;
        }
        if let Some(faults) = &faults {
            faults.check(FaultPoint::Allocation, OPERATION)?;
        }
        let weights = Weights::load(&checkpoint, &decoder, treatment, &load_options)?;
        let network = Network::new(decoder, weights, compute, numerics, capacity)?;
        Ok(Engine::new(network, vocabulary, look_ahead, faults))
    })?;
    let mut info = info;
    info.weight_bytes = worker.call(OPERATION, |engine| Ok(engine.weight_bytes()))?;
    let snapshot_bytes = worker.call(OPERATION, move |engine| Ok(engine.snapshot_bytes(capacity)))?;
    info.load_time = started.elapsed();

    let top = u16::try_from(vocabulary).unwrap_or(u16::MAX);
    let capabilities = Capabilities::new(sequences, capacity)
        .with_batch_rows(sequences)
        .with_prompt_chunk(if generates { chunk } else { usize::MAX })
        .with_generation(generates)
        .with_token_types(types)
        .with_logits(generates)
        .with_top_logprobs(if generates { top } else { 0 })
        .with_every_position(generates)
        .with_verification(generates)
        .with_hidden_states(Some(hidden))
        .with_output_states(returned.filter(|_| generates))
        .with_input_states(is_draft_head.then_some(hidden))
        .with_token_masks(generates)
        .with_rewind(generates && rewind)
        .with_fork(generates)
        .with_snapshot(generates)
        .with_snapshot_bytes(snapshot_bytes.filter(|_| generates))
        .with_adapters(adapters)
        .with_sampling(match generates {
            true => SamplingFields::from(super::sampling::FIELDS),
            false => SamplingFields::NONE,
        });
    // Windows that are never filled keep all positions.
    let kept = if rewind { "" } else { " windows" };
    let part = if is_draft_head { " draft head" } else { "" };
    info.state_format = format!("kv/2 {:?}{kept}{part}", numerics.kv).to_lowercase();
    let caches = AtomicU64::new(0);
    Ok(MlxModel(Arc::new(Shared { worker, info, capabilities, epochs, caches, adapters: room })))
}

fn at_least_one(field: &'static str, value: usize) -> Result<usize> {
    if value > 0 {
        return Ok(value);
    }
    Err(Error::new(ErrorKind::InvalidInput, OPERATION, "it must be at least 1")
        .with_context("field", field)
        .with_context("value", value))
}

/// The device in the options; defaults to the best one present.
fn device(name: Option<&str>) -> Result<Device> {
    let device = match name {
        None => return Device::best(),
        Some("gpu") => Device::Gpu,
        Some(_) => Device::Cpu,
    };
    if device.count()? == 0 {
        let message = "this MLX does not have the device on this machine";
        return Err(Error::new(ErrorKind::NotFound, OPERATION, message)
            .with_context("device", name.unwrap_or_default()));
    }
    Ok(device)
}

/// Refuses a GPU whose products of float32 have fewer bits: MLX takes those of TF32 where there are any,
/// unless its environment variable says otherwise, which it reads once.
fn check_products() -> Result<()> {
    // A sum of 32 numbers of which TF32 keeps 1.
    let one_more = 1.0 + f32::exp2(-12.0);
    let (ones, more) =
        (Array::full(&[32, 32], 1.0, DType::F32)?, Array::full(&[32, 32], one_more, DType::F32)?);
    if ones.matmul(&more)?.to_vec::<f32>()?.iter().all(|sum| *sum == 32.0 * one_more) {
        return Ok(());
    }
    let message = "MLX multiplies float32 in TF32 on this GPU: set MLX_ENABLE_TF32=0 before the program starts, or load the model with \
                   native precision";
    Err(Error::unsupported(OPERATION, message)
        .with_context("device", "gpu")
        .with_context("precision", Precision::Exact))
}

/// The element types of a precision.
fn numerics(precision: Precision, device: Device, decoder: &Decoder) -> Result<Numerics> {
    let native = DType::of(decoder.element_type).filter(|_| decoder.element_type.is_dense_float());
    let native = native.ok_or_else(|| {
        Error::unsupported(OPERATION, "activations must be F32, F16 or BF16")
            .with_context("element_type", decoder.element_type)
    });
    match (precision, device) {
        (Precision::Exact, _) => Ok(Numerics { activation: DType::F32, kv: DType::F32 }),
        (Precision::Native, Device::Cpu) => Ok(Numerics { activation: DType::F32, kv: native? }),
        (Precision::Native, Device::Gpu) => native.map(|native| Numerics { activation: native, kv: native }),
        (other, _) => Err(Error::unsupported(OPERATION, "this engine runs with exact or native precision")
            .with_context("precision", other)),
    }
}

/// Metadata of the model before it is loaded.
fn info(
    backend: &MlxBackend,
    options: &LoadOptions,
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    capacity: usize,
) -> ModelInfo {
    let mut info = ModelInfo::new(NAME, &decoder.model_type, decoder.vocabulary_size);
    info.stop_tokens = checkpoint.stop_tokens().to_vec();
    info.fingerprint = checkpoint.fingerprint();
    if let Some(quantization) = backend.quantization {
        info.fingerprint = format!("{} {quantization}", info.fingerprint);
    }
    info.capacity = capacity;
    info.precision = options.precision;
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_the_cpu_are_exact() {
        Device::Cpu.select().unwrap();
        check_products().unwrap();
    }
}
