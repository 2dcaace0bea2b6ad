//! Decoder programs on the evaluator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{
    ENTRY, Executor, KvLayout, Numerics, ProgramShape, StepInputs, StepOutputs, decoder_program,
    weight_arguments,
};
use mlxcel_models::{Checkpoint, Decoder, WeightRef};
use mlxcel_stablehlo::TensorType;
use mlxcel_stablehlo::eval::{EvalError, Input, Program, RunOptions, Tensor, Workers};

/// A checkpoint's mapped weights, and the programs planned so far.
pub(crate) struct PortableExecutor {
    checkpoint: Checkpoint,
    decoder: Decoder,
    numerics: Numerics,
    /// The weights' tensors in the order of the programs' arguments.
    weights: Vec<(WeightRef, TensorType)>,
    workers: Workers,
    programs: Mutex<HashMap<ProgramShape, Arc<Program>>>,
}

/// The KV cache of one sequence; it is away while a program runs on it, and does not come back where that fails.
pub(crate) struct PortableCache(Option<Tensor>);

impl PortableCache {
    fn tensor(&self) -> Result<&Tensor> {
        self.0.as_ref().ok_or_else(lost_cache)
    }

    fn tensor_mut(&mut self) -> Result<&mut Tensor> {
        self.0.as_mut().ok_or_else(lost_cache)
    }
}

impl PortableExecutor {
    pub(crate) fn new(
        checkpoint: Checkpoint,
        decoder: Decoder,
        numerics: Numerics,
        workers: Workers,
    ) -> Result<Self> {
        let weights =
            weight_arguments(&decoder)?.into_iter().map(|(weight, ty)| (weight.clone(), ty)).collect();
        Ok(Self { checkpoint, decoder, numerics, weights, workers, programs: Mutex::default() })
    }

    fn program(&self, shape: &ProgramShape) -> Result<Arc<Program>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.get(shape) {
            return Ok(Arc::clone(program));
        }
        let module = decoder_program(&self.decoder, self.numerics, shape)?.module;
        let program = Arc::new(Program::plan(&module, ENTRY).map_err(|error| failed("plan program", error))?);
        programs.insert(shape.clone(), Arc::clone(&program));
        Ok(program)
    }
}

impl Executor for PortableExecutor {
    type Cache = PortableCache;

    fn prepare(&self, shape: &ProgramShape, _cancel: Option<&CancelToken>) -> Result<Duration> {
        // Planning is a matter of milliseconds; nothing is compiled.
        self.program(shape).map(|_| Duration::ZERO)
    }

    fn allocate(&self, layout: &KvLayout, length: usize) -> Result<PortableCache> {
        Ok(PortableCache(Some(Tensor::zeros(TensorType::new(layout.element, layout.shape(length))))))
    }

    fn copy(
        &self,
        layout: &KvLayout,
        (from, from_length): (&PortableCache, usize),
        (to, to_length): (&mut PortableCache, usize),
        positions: usize,
    ) -> Result<()> {
        let (from, to) = (from.tensor()?.bytes(), to.tensor_mut()?.bytes_mut());
        for part in layout.copy_segments(from_length, to_length, positions) {
            to[part.to..part.to + part.bytes].copy_from_slice(&from[part.from..part.from + part.bytes]);
        }
        Ok(())
    }

    fn read(
        &self,
        layout: &KvLayout,
        cache: &PortableCache,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>> {
        let from = cache.tensor()?.bytes();
        let mut bytes = Vec::with_capacity(layout.bytes(positions));
        for part in layout.copy_segments(length, positions, positions) {
            bytes.extend_from_slice(&from[part.from..part.from + part.bytes]);
        }
        Ok(bytes)
    }

    fn write(
        &self,
        layout: &KvLayout,
        cache: &mut PortableCache,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let to = cache.tensor_mut()?.bytes_mut();
        for part in layout.copy_segments(positions, length, positions) {
            to[part.to..part.to + part.bytes].copy_from_slice(&bytes[part.from..part.from + part.bytes]);
        }
        Ok(())
    }

    fn run(
        &self,
        shape: &ProgramShape,
        inputs: &StepInputs,
        caches: &mut [&mut PortableCache],
        logits: &[usize],
    ) -> Result<StepOutputs> {
        let program = self.program(shape)?;
        let mut arguments = Vec::with_capacity(program.arguments().len());
        for (weight, ty) in &self.weights {
            let bytes = self.checkpoint.weight(weight)?.bytes;
            arguments.push(Input::Borrowed { ty, bytes });
        }
        let step_types = program.arguments()[arguments.len()..].iter().map(|(_, ty)| ty);
        for (bytes, ty) in inputs.arguments().zip(step_types) {
            arguments.push(Input::Borrowed { ty, bytes });
        }
        for cache in caches.iter_mut() {
            arguments.push(Input::Owned(cache.0.take().ok_or_else(lost_cache)?));
        }
        let options = RunOptions { workers: Some(&self.workers), ..RunOptions::default() };
        let results = program.run_with(arguments, &options).map_err(|error| failed("run program", error))?;
        let mut results = results.into_iter();
        let (Some(best), Some(all_logits)) = (results.next(), results.next()) else {
            return Err(Error::new(ErrorKind::Internal, "run program", "the program gave too few results"));
        };
        for (cache, result) in caches.iter_mut().zip(results) {
            cache.0 = Some(result);
        }
        let vocabulary = self.decoder.vocabulary_size;
        let all_logits: &[f32] = bytemuck::cast_slice(all_logits.bytes());
        Ok(StepOutputs {
            best: StepOutputs::decode_best(bytemuck::cast_slice(best.bytes())),
            logits: logits.iter().map(|row| all_logits[row * vocabulary..][..vocabulary].to_vec()).collect(),
        })
    }
}

fn failed(operation: &'static str, error: EvalError) -> Error {
    Error::new(ErrorKind::Internal, operation, "the evaluator refused a decoder's graph").with_source(error)
}

fn lost_cache() -> Error {
    Error::new(ErrorKind::Internal, "run program", "the cache of a failed run was used again")
}
