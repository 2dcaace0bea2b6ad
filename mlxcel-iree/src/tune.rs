//! Chooses the schedule of kernels by measuring the candidates on this machine.

use std::fmt;
use std::time::{Duration, Instant};

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, LoadProgress, LoadStage, ModelSource, Result};
use mlxcel_graph::{GraphModelOptions, ProgramWriter};
use mlxcel_iree_compile::compiler::CompileOptions;
use mlxcel_iree_compile::{Artifacts, TrialWeights};
use mlxcel_iree_kernels::{Bf16Products, Hardware, Instructions, VectorSet};
use mlxcel_iree_runtime::{Argument, Buffer, Constants, Device, DeviceOptions, Function, Program};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_iree_target::threads::share_out;
use mlxcel_models::Checkpoint;
use mlxcel_stablehlo::TensorType;

pub use mlxcel_iree_kernels::Schedule;

use crate::backend::IreeBackend;
use crate::devices::{self, DeviceName};

const OPERATION: &str = "tune kernels";

/// How often each candidate runs, in turns.
const ROUNDS: usize = 9;

/// Bytes of weights that one run with few rows reads: more than caches hold.
const BYTES: usize = 160 << 20;

/// Another schedule replaces the one so far if it takes at most this part of the time: less is within noise.
const WORTH: f64 = 0.97;

/// The result of [`IreeBackend::tune`]: the schedule that is used from now on, and what was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tuning {
    /// The matrices that were multiplied: those that most of the model's weights are in.
    pub weights: String,
    /// The schedule that was chosen.
    pub schedule: Schedule,
    /// Whether it is kept in the cache; false on systems without a cache folder.
    pub kept: bool,
    /// The comparisons that led to it, in their order.
    pub comparisons: Vec<Comparison>,
}

/// Schedules that differ in one choice, with the time that each takes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// The number of rows that the matrices were multiplied with.
    pub rows: usize,
    /// The candidates, the one so far first, with the median time of a run.
    pub candidates: Vec<(Schedule, Duration)>,
}

impl Comparison {
    /// The fastest candidate, if it is faster than the first by more than noise; else the first.
    fn chosen(&self) -> Option<Schedule> {
        let (first, time) = self.candidates.first()?;
        let (best, least) = self.candidates.iter().min_by_key(|(_, time)| *time)?;
        let is_worth = least.as_secs_f64() <= WORTH * time.as_secs_f64();
        Some(if is_worth { *best } else { *first })
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "matrices {}", self.weights)?;
        for Comparison { rows, candidates } in &self.comparisons {
            for (schedule, time) in candidates {
                let milliseconds = time.as_secs_f64() * 1e3;
                writeln!(f, "{rows:4} rows  {:<36} {milliseconds:8.3} ms", schedule.to_string())?;
            }
        }
        write!(f, "chosen     {}", self.schedule)
    }
}

impl IreeBackend {
    /// Sets the schedule of kernels, which defaults to the one that [`tune`](Self::tune) measured for the
    /// model's matrices, else to what is known of the processor's model.
    #[must_use]
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.programs.schedule = Some(schedule);
        self
    }

    /// Measures which schedule of kernels is fastest on this machine for the matrices of the model in
    /// `source`, and keeps the result in the cache: models with such matrices, and bundles of them for
    /// this target, follow it from then on.
    ///
    /// It compiles small programs and runs them for a few seconds; nothing else should load the machine. The
    /// precision, the device and the number of threads are those of `options`.
    /// [Progress](LoadOptions::progress) is in programs compiled.
    ///
    /// ```no_run
    /// use mlxcel_core::LoadOptions;
    /// use mlxcel_iree::IreeBackend;
    ///
    /// println!("{}", IreeBackend::new().tune(&"models/llama".into(), &LoadOptions::default())?);
    /// # Ok::<(), mlxcel_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a target whose kernels have no schedule (GPUs, and processors without
    /// vector instructions that kernels are written for) and for a model without matrices; the errors of
    /// opening a checkpoint, of compiling and of the device; [`ErrorKind::Cancelled`]; [`ErrorKind::Io`]
    /// if the result cannot be written.
    pub fn tune(&self, source: &ModelSource, options: &LoadOptions) -> Result<Tuning> {
        let checkpoint = Checkpoint::from_source(source)?;
        let decoder = checkpoint.decoder()?;
        let DeviceName { driver, device } = DeviceName::of(options)?;
        let device = devices::open(&DeviceOptions {
            driver,
            device,
            threads: options.threads,
            affinity: self.affinity.clone(),
            ..Default::default()
        })?;
        let target = self.programs.resolve(None, device.description())?;
        target.check_device(device.description())?;
        let Hardware::Processor(Some(instructions)) = target.hardware()? else {
            let message = "kernels for this target have no schedule to choose";
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, message).with_context("target", target));
        };
        let writer = ProgramWriter::new(decoder, &GraphModelOptions::from(options))?;
        let Some(weights) = TrialWeights::of(&writer) else {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, "the model has no matrices"));
        };
        let bench = Bench {
            matrices: Matrices::upload(&device, &weights)?,
            device,
            artifacts: self.toolchain.artifacts()?,
            weights,
            target,
            options,
        };
        let (schedule, comparisons) = bench.choose(instructions)?;
        let kept = self.toolchain.cache()?.keep_schedule(&bench.target, &weights, &schedule)?;
        Ok(Tuning { weights: weights.to_string(), schedule, kept, comparisons })
    }
}

/// The schedules that differ from one in a single choice.
type Alternatives = fn(Schedule) -> Vec<Schedule>;

/// Numbers of rows, and what schedules for them can differ in.
fn comparisons(instructions: &Instructions, weights: &TrialWeights) -> Vec<(usize, Alternatives)> {
    let mut comparisons: Vec<(usize, Alternatives)> = Vec::new();
    // First, since it decides how much arithmetic there is to wait for. Arm multiplies matrices of bfloat16,
    // which no float32 keeps up with.
    if weights.is_bf16() && instructions.bf16_dot && instructions.set != VectorSet::Neon {
        comparisons.push((128, |schedule| {
            [Bf16Products::Pairs, Bf16Products::Floats].map(|bf16| schedule.with_bf16(bf16)).into()
        }));
    }
    comparisons.push((1, |schedule| Schedule::STREAMS.map(|streams| schedule.with_streams(streams)).into()));
    comparisons.push((4, |schedule| Schedule::AHEAD.map(|bytes| schedule.with_ahead(bytes)).into()));
    comparisons
}

/// What trials have in common.
struct Bench<'a> {
    device: Device,
    artifacts: Artifacts,
    weights: TrialWeights,
    matrices: Matrices,
    target: ResolvedTarget,
    options: &'a LoadOptions,
}

/// Matrices on the device.
struct Matrices {
    count: usize,
    parts: Vec<(TensorType, Buffer)>,
}

impl Matrices {
    fn upload(device: &Device, weights: &TrialWeights) -> Result<Self> {
        let count = (BYTES / weights.bytes().max(1)).clamp(1, 64);
        let parts = weights.parts();
        let mut uploaded = Vec::with_capacity(count * parts.len());
        for _ in 0..count {
            for ty in &parts {
                uploaded.push((ty.clone(), device.upload(&ordinary(ty))?));
            }
        }
        Ok(Self { count, parts: uploaded })
    }
}

/// Bytes that are numbers of a usual size in every type: what is multiplied changes no time, unless it is
/// subnormal.
fn ordinary(ty: &TensorType) -> Vec<u8> {
    vec![0x2c; ty.bytes()]
}

impl Bench<'_> {
    /// Compares schedules choice by choice, beginning with what is known.
    fn choose(&self, instructions: Instructions) -> Result<(Schedule, Vec<Comparison>)> {
        let (mut schedule, mut made) = (instructions.schedule, Vec::new());
        let wanted = comparisons(&instructions, &self.weights);
        for (done, (rows, candidates)) in (0..).zip(&wanted) {
            self.report(done, wanted.len());
            let mut candidates = candidates(schedule);
            candidates.retain(|candidate| *candidate != schedule);
            candidates.insert(0, schedule);
            let comparison = self.compare(*rows, &candidates)?;
            schedule = comparison.chosen().unwrap_or(schedule);
            made.push(comparison);
        }
        self.report(wanted.len() as u64, wanted.len());
        Ok((schedule, made))
    }

    fn report(&self, done: u64, total: usize) {
        if let Some(progress) = &self.options.progress {
            progress(LoadProgress::new(LoadStage::Compile, done, total as u64));
        }
    }

    /// Runs the candidates in turns, each time from another one on.
    fn compare(&self, rows: usize, candidates: &[Schedule]) -> Result<Comparison> {
        // Many rows take long enough over one matrix.
        let count = if rows > 16 { 1 } else { self.matrices.count };
        let functions = self.compiled(rows, count, candidates)?;
        let x = self.weights.activations(rows);
        let activations = self.device.upload(&ordinary(&x))?;
        let parts = count * self.weights.parts().len();
        let matrices = self.matrices.parts[..parts].iter().map(|(ty, buffer)| (ty, buffer));
        let arguments: Vec<_> = std::iter::once((&x, &activations))
            .chain(matrices)
            .map(|(ty, buffer)| Argument::new(buffer, &ty.shape, ty.element))
            .collect();
        let control = self.options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
        let mut times = vec![Vec::with_capacity(ROUNDS); candidates.len()];
        for round in 0..=ROUNDS {
            for turn in 0..candidates.len() {
                control.check(OPERATION)?;
                let candidate = (round + turn) % candidates.len();
                let started = Instant::now();
                functions[candidate].invoke(&Constants::default(), &arguments)?;
                // The first round brings memory and threads to where they are for the others.
                if round > 0 {
                    times[candidate].push(started.elapsed());
                }
            }
        }
        let median = |mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2]
        };
        let candidates = candidates.iter().copied().zip(times.into_iter().map(median)).collect();
        Ok(Comparison { rows, candidates })
    }

    /// The program of each candidate, compiled side by side.
    fn compiled(&self, rows: usize, count: usize, candidates: &[Schedule]) -> Result<Vec<Function>> {
        let mut made = vec![None; candidates.len()];
        let work = candidates.iter().zip(&mut made).collect();
        share_out(OPERATION, candidates.len(), work, |(schedule, program)| {
            *program = Some(self.program(rows, count, *schedule)?);
            Ok(())
        })?;
        Ok(made.into_iter().flatten().collect())
    }

    fn program(&self, rows: usize, count: usize, schedule: Schedule) -> Result<Function> {
        let target = self.target.clone().with_schedule(schedule);
        let text = self.weights.program(&target, rows, count)?;
        let label = format!("trial of {} with {rows} rows, {schedule}", self.weights);
        let options = CompileOptions::new(target).with_label(label);
        let artifact = self.artifacts.get(&text, &options, self.options.cancel.as_ref())?;
        Program::load(&self.device, &artifact.bytes)?.function(TrialWeights::ENTRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(times: &[u64]) -> Comparison {
        let schedules =
            Schedule::STREAMS.map(|streams| Schedule::unmeasured(VectorSet::Avx512).with_streams(streams));
        let times = times.iter().map(|&time| Duration::from_micros(time));
        Comparison { rows: 1, candidates: schedules.into_iter().zip(times).collect() }
    }

    #[test]
    fn what_is_known_stays_unless_another_is_faster_by_more_than_noise() {
        let streams = |times: &[u64]| comparison(times).chosen().map(|schedule| schedule.streams);
        assert_eq!(streams(&[1000, 990, 1200]), Some(1));
        assert_eq!(streams(&[1000, 980, 900]), Some(4));
        assert_eq!(streams(&[1000, 960]), Some(2));
        assert_eq!(streams(&[]), None);
    }
}
