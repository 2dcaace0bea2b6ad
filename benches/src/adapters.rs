//! The suite `adapters`: the cost of adapters of random values beside all projections, on the IREE engine.
//! Ratios are of medians within one round, relative to a model without room for adapters.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use mlxcel_core::{
    Adapter, AdapterLimits, Backend, Control, InferenceSession, InferenceSessionExt, LoadOptions, Model,
    ModelSource, Row, SamplingPlan, SequenceId, SequenceOptions, SessionOptions, StepOutput,
};
use mlxcel_iree::IreeBackend;
use mlxcel_models::Checkpoint;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::machine::Machine;
use crate::safetensors;
use crate::shapes::LLAMA_1B;
use crate::spread::{Spread, random_tokens, shuffled};

/// Measurements and their repetitions.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of checkpoints
    #[arg(long, default_value = "target/bench", hide = true)]
    folder: PathBuf,
    /// A checkpoint without fused projections; defaults to random weights of Llama-3.2-1B's shapes in 4 bits
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// How many times each is measured, in random order
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Steps of each measurement
    #[arg(long, default_value_t = 9)]
    steps: usize,
    /// Tokens of each sequence before the steps
    #[arg(long, default_value_t = 64)]
    position: usize,
    /// Slots for adapters, and rows of the larger step
    #[arg(long, default_value_t = 8)]
    slots: usize,
    /// The rank of the adapters, and of the room
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// Number of threads; defaults to the engine's choice
    #[arg(long)]
    threads: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Machine { processor, cores, .. } = Machine::of_this_process();
    let folder = match &arguments.model {
        Some(folder) => folder.clone(),
        None => LLAMA_1B.provide_quantized(&LLAMA_1B.provide(&arguments.folder)?, 4)?,
    };
    let Arguments { rounds, slots, rank, position, .. } = *arguments;
    println!(
        "{processor}, {cores} cores; {}; {slots} slots of rank {rank}; {rounds} rounds\n",
        folder.display()
    );
    let adapters = arguments.folder.join("adapters");
    let adapters = (0..slots).map(|number| write_adapter(&folder, &adapters, number, rank));
    let adapters = adapters.collect::<Result<Vec<_>>>()?;
    let source = ModelSource::from(folder.as_path());
    let mut load = LoadOptions::default().with_sequences(slots).with_capacity(position + arguments.steps + 2);
    load.threads = arguments.threads;
    let roomy = load.clone().with_adapters(AdapterLimits::new(slots, rank));
    let engine = IreeBackend::new();
    println!("memory of adapters: {} bytes", engine.estimate(&source, &roomy)?.adapters);
    let plain = engine.load(&source, &load).context("loading the model")?;
    let room = engine.load(&source, &roomy).context("loading the model with room")?;
    let loaded = load_times(&*room, &adapters, rounds)?;

    let none = vec![None; slots];
    let one: Vec<_> = loaded.iter().take(1).map(Some).collect();
    let each: Vec<_> = loaded.iter().map(Some).collect();
    let mut cases = [
        Case::new("1 row, no room", &*plain, &none[..1], arguments)?,
        Case::new("1 row, room, no adapter", &*room, &none[..1], arguments)?,
        Case::new("1 row, 1 adapter", &*room, &one, arguments)?,
        Case::new(&format!("{slots} rows, no room"), &*plain, &none, arguments)?,
        Case::new(&format!("{slots} rows, room, no adapter"), &*room, &none, arguments)?,
        Case::new(&format!("{slots} rows, {slots} adapters"), &*room, &each, arguments)?,
    ];
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..rounds {
        for index in shuffled(cases.len(), &mut random) {
            cases[index].measure(arguments)?;
        }
    }
    println!("\n{:<32}{:<28}relative to no room, same round", "a step of", "ms");
    for (index, case) in cases.iter().enumerate() {
        let base = &cases[index / 3 * 3].seconds;
        let ratios: Vec<f64> = case.seconds.iter().zip(base).map(|(own, base)| own / base).collect();
        let millis = Spread::of(&case.seconds).scaled(1e3).to_string();
        println!("{:<32}{millis:<28}{}", case.name, Spread::of(&ratios));
    }
    Ok(())
}

/// Loads all adapters, dropping and loading the first several times, and prints how long that takes.
fn load_times(model: &dyn Model, folders: &[PathBuf], rounds: usize) -> Result<Vec<Adapter>> {
    let timed = |folder: &Path| -> Result<(Adapter, f64)> {
        let start = Instant::now();
        let adapter = model.load_adapter(&folder.into())?;
        Ok((adapter, start.elapsed().as_secs_f64()))
    };
    let Some(first) = folders.first() else { return Ok(Vec::new()) };
    // Its file is read from disk the first time.
    drop(timed(first)?);
    let times = (0..rounds.max(1)).map(|_| Ok(timed(first)?.1)).collect::<Result<Vec<_>>>()?;
    println!("loading one adapter: {} ms", Spread::of(&times).scaled(1e3));
    folders.iter().map(|folder| Ok(timed(folder)?.0)).collect()
}

/// Sequences that decode together, and the times of their steps.
struct Case {
    name: String,
    session: Box<dyn InferenceSession>,
    sequences: Vec<SequenceId>,
    plan: SamplingPlan,
    out: StepOutput,
    seconds: Vec<f64>,
}

impl Case {
    /// A sequence with each of `adapters`, or none, after its prompt.
    fn new(
        name: &str,
        model: &dyn Model,
        adapters: &[Option<&Adapter>],
        arguments: &Arguments,
    ) -> Result<Self> {
        let mut session = model.open_session(&SessionOptions::default())?;
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let tokens = random_tokens(model.info().vocabulary_size, arguments.position, &mut random);
        let mut sequences = Vec::new();
        for adapter in adapters {
            let mut options = SequenceOptions::default();
            options.adapter = adapter.cloned();
            let sequence = session.open_with(&options)?;
            session.run_row(Row::extend(sequence, &tokens), &Control::default())?;
            sequences.push(sequence);
        }
        let (plan, out) = (SamplingPlan::greedy(), StepOutput::new());
        let mut case = Self { name: name.to_owned(), session, sequences, plan, out, seconds: Vec::new() };
        // Compiles the programs.
        case.step()?;
        case.rewind(arguments.position)?;
        Ok(case)
    }

    /// The seconds of a step.
    fn step(&mut self) -> Result<f64> {
        let rows = self.sequences.iter().map(|&sequence| Row::next(sequence, &[1], &self.plan));
        let rows: Vec<_> = rows.collect();
        let start = Instant::now();
        self.session.step(&rows, &Control::default(), &mut self.out)?;
        let seconds = start.elapsed().as_secs_f64();
        self.out.take().into_iter().try_for_each(|result| result.map(drop))?;
        Ok(seconds)
    }

    fn rewind(&mut self, position: usize) -> Result<()> {
        let Self { session, sequences, .. } = self;
        Ok(sequences.iter().try_for_each(|&sequence| session.rewind(sequence, position))?)
    }

    /// Adds the median of some steps.
    fn measure(&mut self, arguments: &Arguments) -> Result<()> {
        let seconds = (0..arguments.steps).map(|_| self.step()).collect::<Result<Vec<_>>>()?;
        self.rewind(arguments.position)?;
        self.seconds.push(Spread::of(&seconds).median);
        Ok(())
    }
}

/// Writes adapter `number` for all projections of a checkpoint below `parent`, in bfloat16; returns its
/// folder.
fn write_adapter(checkpoint: &Path, parent: &Path, number: usize, rank: usize) -> Result<PathBuf> {
    let folder = parent.join(format!("{rank}-{number}"));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let decoder = Checkpoint::open(checkpoint)?.decoder()?;
    let mut tensors = Vec::new();
    let mut names = Vec::new();
    for linear in decoder.adaptable() {
        let weight = decoder.weight(linear.weight);
        let module = weight.tensor.rsplit_once('.').map_or(&*weight.tensor, |(module, _)| module);
        let name = |matrix: &str| format!("base_model.model.{module}.lora_{matrix}.weight");
        tensors.push((name("A"), vec![rank, linear.inputs]));
        tensors.push((name("B"), vec![linear.outputs, rank]));
        names.push(module.to_owned());
    }
    let settings = serde_json::json!({
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": names,
    });
    fs::write(folder.join("adapter_config.json"), settings.to_string())?;
    let mut file = BufWriter::new(File::create(folder.join("adapter_model.safetensors"))?);
    let described = tensors.iter().map(|(name, shape)| (name.clone(), "BF16", shape.clone()));
    file.write_all(&safetensors::header(described))?;
    let mut random = ChaCha8Rng::seed_from_u64(number as u64);
    for (_, shape) in &tensors {
        for _ in 0..shape.iter().product::<usize>() {
            let value = (random.next_u32() as f32 / u32::MAX as f32 - 0.5) * 0.02;
            file.write_all(&((value.to_bits() >> 16) as u16).to_le_bytes())?;
        }
    }
    file.flush()?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use mlxcel_models::AdapterWeights;

    use super::*;
    use crate::shapes::SMALL;

    #[test]
    fn an_adapter_is_read_for_all_projections() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SMALL.provide(parent.path()).unwrap();
        let adapter = write_adapter(&folder, parent.path(), 3, 4).unwrap();
        let decoder = Checkpoint::open(&folder).unwrap().decoder().unwrap();
        let read =
            AdapterWeights::read(&adapter.as_path().into(), &decoder, AdapterLimits::new(1, 4)).unwrap();
        assert_eq!(read.products.len(), decoder.adaptable().len());
    }
}
