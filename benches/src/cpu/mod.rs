//! The suite `cpu`: the IREE and the MLX engine compared with llama.cpp, ik_llama.cpp, OpenVINO GenAI,
//! candle, mistral.rs and mlx-lm.
//!
//! Each contestant's turn is a separate process, so only one is in memory at a time; turns are taken in
//! rounds. Before the rounds each of ours has an uncounted turn with an empty cache, which measures
//! compilation and fills the cache.

mod contestants;
mod copy;
mod measure;
mod plot;
mod results;
mod table;
mod targets;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use self::contestants::{Candle, Common, Effort, Entry, LlamaCpp, MistralRs, MlxLm, Ours, SameFiles};
use self::measure::Plan;
use self::results::{Program, Results, argmax, distance};
use crate::bandwidth::Probe;
use crate::machine::Machine;
use crate::shapes::ModelName;
use crate::worker::{self, Worker};

/// Tokens of the prompt whose logits are compared.
const COMPARED: usize = 64;

/// The fewest rounds to publish medians of.
const PUBLISHED_ROUNDS: usize = 5;

/// Measurements and their repetitions.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of checkpoints and results
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The worker that runs llama.cpp; by default it is not measured
    #[arg(long)]
    llama_cpp: Option<PathBuf>,
    /// The folder that has ik_llama.cpp, which is measured on llama.cpp's files of the same types; by default
    /// it is not measured
    #[arg(long, requires = "llama_cpp")]
    ik_llama_cpp: Option<PathBuf>,
    /// The folder that has OpenVINO GenAI, which is measured on what it makes of llama.cpp's files of the
    /// same types; by default it is not measured
    #[arg(long, requires = "llama_cpp")]
    openvino: Option<PathBuf>,
    /// The Python that has ONNX Runtime GenAI, torch and transformers; by default it is not measured
    #[arg(long, value_name = "PYTHON")]
    onnxruntime: Option<String>,
    /// The worker that runs candle; by default it is not measured
    #[arg(long)]
    candle: Option<PathBuf>,
    /// The worker that runs mistral.rs; by default it is not measured
    #[arg(long)]
    mistralrs: Option<PathBuf>,
    /// The folder that has mlx-lm; by default it is not measured
    #[arg(long)]
    packages: Option<PathBuf>,
    /// The Python that programs for Python were installed with
    #[arg(long, default_value = "python3")]
    python: String,
    /// The shapes of the model
    #[arg(long, value_enum, default_value_t = ModelName::Llama1b)]
    model: ModelName,
    /// Our configurations
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = [Ours::Bf16, Ours::Bf16Exact, Ours::EightBit, Ours::EightBitFast, Ours::FourBit, Ours::FourBitFast])]
    ours: Vec<Ours>,
    /// llama.cpp types
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = [LlamaCpp::Bf16, LlamaCpp::Q8, LlamaCpp::Q4, LlamaCpp::Q4Pure])]
    llama_cpp_types: Vec<LlamaCpp>,
    /// Also our engine on llama.cpp's own files of the same types, at these precisions; llama.cpp's
    /// activations have 8 bits, like `fast`, and `native` is the default
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_missing_value = "native")]
    same_files: Vec<SameFiles>,
    /// candle types
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = [Candle::F32, Candle::Bf16])]
    candle_types: Vec<Candle>,
    /// mistral.rs types
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = [MistralRs::Q8, MistralRs::Q4])]
    mistralrs_types: Vec<MistralRs>,
    /// mlx-lm types; each takes a minute
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = [MlxLm::Bf16])]
    mlx_lm_types: Vec<MlxLm>,
    /// Threads; defaults to all cores. mlx-lm has no such setting
    #[arg(long)]
    threads: Option<usize>,
    /// Turns of each contestant; their order is drawn for each round
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The seed for the order of turns
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A quick look: one round, one position, one prompt, no batches
    #[arg(long)]
    quick: bool,
    /// How many times short measurements are repeated in a turn
    #[arg(long, default_value_t = 2)]
    repeats: usize,
    /// Sequence lengths when decoding; those after the first are measured with bfloat16 weights only
    #[arg(long, value_delimiter = ',', num_args = 1.., default_values_t = [128, 1024, 4096])]
    positions: Vec<usize>,
    /// The positions after the first are measured with every type of weights
    #[arg(long)]
    long_for_all: bool,
    /// Numbers of sequences decoded together, besides one
    #[arg(long, value_delimiter = ',', num_args = 0.., default_values_t = [2, 4, 8])]
    batches: Vec<usize>,
    /// Prompt lengths in tokens
    #[arg(long, value_delimiter = ',', num_args = 1.., default_values_t = [128, 512])]
    prefills: Vec<usize>,
    /// Tokens decoded per measurement
    #[arg(long, default_value_t = 16)]
    decode: usize,
    /// Measures nothing, and shows earlier results: the numbers in this file
    #[arg(long)]
    show: Option<PathBuf>,
    /// Where tables and plot are also written, as benchmarks-MODEL; for at least five rounds with a peer
    #[arg(long)]
    docs: Option<PathBuf>,
}

impl Arguments {
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds }
    }
}

/// Runs the suite, prints tables, and writes the numbers and the plot.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (results, path) = match &arguments.show {
        Some(path) => (Results::read(path)?, path.clone()),
        None => {
            if arguments.docs.is_some() {
                // Before an hour of measurements, not after it.
                let peers =
                    [&arguments.llama_cpp, &arguments.candle, &arguments.mistralrs, &arguments.packages];
                expect_published(arguments.rounds(), peers.into_iter().any(Option::is_some))?;
            }
            let results = measure(arguments)?;
            let path = arguments.folder.join(format!("cpu-{}.json", results.model));
            results.write(&path)?;
            (results, path)
        }
    };
    if arguments.docs.is_some() {
        expect_published(results.rounds, results.contestants.iter().any(|contestant| !contestant.ours()))?;
    }
    let text = format!("{}\n{}", table::table(&results), targets::table(&results));
    println!("\n{text}");
    let plot = plot::svg(&results)?;
    // Replaces the extension `json`; a model's name may have a dot.
    let beside = path.with_extension("");
    let documented = arguments.docs.as_ref().map(|docs| docs.join(format!("benchmarks-{}", results.model)));
    for place in std::iter::once(&beside).chain(&documented) {
        for (ending, content) in [("txt", &text), ("svg", &plot)] {
            let file = PathBuf::from(format!("{}.{ending}", place.display()));
            fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    eprintln!("the numbers are in {}, tables and plot beside it", path.display());
    Ok(())
}

/// Refuses to publish results that are not meaningful.
fn expect_published(rounds: usize, with_peer: bool) -> Result<()> {
    if rounds < PUBLISHED_ROUNDS {
        bail!(
            "--docs publishes medians of at least {PUBLISHED_ROUNDS} rounds, and this is {rounds}; noise is larger than most differences"
        );
    }
    if !with_peer {
        bail!(
            "--docs publishes comparisons, and no peer is measured: name llama-cpp, candle, mistralrs or mlx-lm as --peers"
        );
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Results> {
    let plan = plan(arguments)?;
    let rounds = arguments.rounds();
    let shapes = arguments.model.shapes();
    let checkpoint =
        fs::canonicalize(shapes.provide(&arguments.folder)?).context("finding the checkpoint")?;
    let (cache, reference_cache) =
        (empty(checkpoint.join("programs"))?, checkpoint.join("reference-programs"));
    let common = Common {
        shapes: &shapes,
        checkpoint: &checkpoint,
        threads: plan.threads,
        capacity: plan.capacity(),
        sequences: plan.sequences(),
        cache: &cache,
    };
    let [weights_of_token, weights_of_head] = shapes.multiplied().map(|count| count as f64);
    let mut results = Results {
        model: shapes.name.to_owned(),
        remark: shapes.remark.map(str::to_owned),
        kv_values: 2 * shapes.layers * shapes.kv_heads * shapes.head_dim,
        weights_of_token,
        weights_of_head,
        machine: Machine::of_this_process(),
        threads: plan.threads,
        rounds,
        position: plan.positions[0],
        ..Results::default()
    };
    let mut entries = entries(&common, arguments, &mut results.absent);
    let probe = Probe::new()?;

    let references = references(&Common { cache: &reference_cache, ..common }, &entries, &mut results.absent);
    entries.retain_mut(|entry| {
        if entry.result.program != Program::Iree {
            return true;
        }
        eprintln!("compiling {}", entry.result.name);
        let prepared = prepare(&plan, entry, &probe, &checkpoint);
        keep(prepared, entry, &mut results.absent)
    });

    let listed: Vec<String> = entries.iter().map(|entry| entry.result.name.clone()).collect();
    let mut random = ChaCha8Rng::seed_from_u64(arguments.seed);
    for round in 0..rounds {
        entries.sort_by_cached_key(|_| random.next_u64());
        entries.retain_mut(|entry| {
            if entry.effort == Effort::Little && round > 0 {
                return true;
            }
            let compared = if round == 0 { COMPARED } else { 0 };
            let turn = plan.turn(entry, &probe, &mut results.memory, &checkpoint, compared);
            let turn = turn.map(|logits| {
                if compared > 0 {
                    compare(entry, &logits, &references);
                }
                tell(round, entry, &plan);
            });
            keep(turn, entry, &mut results.absent)
        });
    }
    results.versions = versions(&entries);
    entries.sort_by_key(|entry| listed.iter().position(|name| *name == entry.result.name));
    results.contestants = entries.into_iter().map(|entry| entry.result).collect();
    Ok(results)
}

fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("emptying {}", folder.display()))?;
    }
    Ok(folder)
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let ascending = |numbers: &[usize], least: usize| {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.retain(|&number| number >= least);
        sorted
    };
    let first = |numbers: &[usize]| {
        if arguments.quick { numbers.iter().take(1).copied().collect() } else { numbers.to_vec() }
    };
    let plan = Plan {
        threads: arguments
            .threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)),
        prefills: first(&ascending(&arguments.prefills, 2)),
        positions: first(&ascending(&arguments.positions, 2)),
        batches: if arguments.quick { Vec::new() } else { ascending(&arguments.batches, 2) },
        decode: arguments.decode,
        little_decode: arguments.decode.min(4),
        repeats: arguments.repeats,
    };
    let apart = plan.positions.windows(2).all(|pair| pair[0] + plan.decode < pair[1]);
    if plan.prefills.is_empty()
        || plan.positions.is_empty()
        || plan.decode == 0
        || plan.repeats == 0
        || !apart
    {
        bail!(
            "prompts need two tokens, decoding one, and positions must be further apart than the decoded tokens"
        );
    }
    Ok(plan)
}

/// All requested contestants that can be started; the others are added to `absent`.
fn entries(common: &Common<'_>, arguments: &Arguments, absent: &mut Vec<(String, String)>) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut add = |name: String, entry: Result<Entry>| match entry {
        Ok(mut entry) => {
            if arguments.long_for_all && entry.effort == Effort::Usual {
                entry.effort = Effort::Long;
            }
            entries.push(entry);
        }
        Err(error) => absent.push((name, format!("{error:#}"))),
    };
    for &which in &arguments.ours {
        add(format!("mlxcel {}", worker::name(&which)), common.ours(which));
    }
    if let Some(program) = &arguments.llama_cpp {
        for &which in &arguments.llama_cpp_types {
            let kind = worker::name(&which);
            add(format!("llama.cpp {kind}"), common.llama_cpp(program, which));
            if let Some(packages) = &arguments.ik_llama_cpp {
                let entry = common.ik_llama_cpp(program, &arguments.python, packages, which);
                add(format!("ik_llama.cpp {kind}"), entry);
            }
            if let Some(packages) = &arguments.openvino {
                let entry = common.openvino(program, &arguments.python, packages, which);
                add(format!("OpenVINO {kind}"), entry);
            }
            for precision in &arguments.same_files {
                let precision = worker::name(precision);
                let entry = common.ours_of_llama_cpp(program, which, &precision);
                add(format!("mlxcel {kind}.gguf {precision}"), entry);
            }
        }
    }
    if let Some(python) = &arguments.onnxruntime {
        add("ONNX Runtime int4".to_owned(), common.onnxruntime(python));
    }
    if let Some(program) = &arguments.candle {
        for &which in &arguments.candle_types {
            add(format!("candle {}", worker::name(&which)), common.candle(program, which));
        }
    }
    if let Some(program) = &arguments.mistralrs {
        for &which in &arguments.mistralrs_types {
            add(format!("mistral.rs {}", worker::name(&which)), common.mistral_rs(program, which));
        }
    }
    if let Some(packages) = &arguments.packages {
        for &which in &arguments.mlx_lm_types {
            add(String::new(), Ok(common.mlx_lm(&arguments.python, packages, which)));
        }
    }
    entries
}

/// Whether a contestant stays; otherwise the reason is added to `absent`.
fn keep(outcome: Result<()>, entry: &Entry, absent: &mut Vec<(String, String)>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(error) => {
            eprintln!("{}: {error:#}", entry.result.name);
            absent.push((entry.result.name.clone(), format!("{error:#}")));
            false
        }
    }
}

/// An uncounted turn, except for its compile time.
fn prepare(plan: &Plan, entry: &mut Entry, probe: &Probe, scratch: &Path) -> Result<()> {
    let before = entry.result.clone();
    let turn = plan.turn(entry, probe, &mut Vec::new(), scratch, COMPARED);
    let compile = std::mem::replace(&mut entry.result, before).warm_compile;
    turn?;
    entry.result.cold_compile = Some(compile);
    Ok(())
}

/// The logits at `exact` of bfloat16 weights and of every other type of our weights.
fn references(
    common: &Common<'_>,
    entries: &[Entry],
    absent: &mut Vec<(String, String)>,
) -> HashMap<String, Vec<f32>> {
    let mut references = HashMap::new();
    for which in [Ours::Bf16Exact, Ours::EightBitExact, Ours::FourBitExact] {
        let used = |entry: &Entry| {
            entry.result.program == Program::Iree && worker::name(&which).starts_with(&entry.result.weights)
        };
        if which != Ours::Bf16Exact && !entries.iter().any(used) {
            continue;
        }
        let logits = common.ours(which).and_then(|entry| {
            eprintln!("computing the logits of {}", entry.result.name);
            let mut worker = Worker::start(&entry.result.name, entry.command())?;
            Ok((entry.result.weights, worker.logits(COMPARED, &common.checkpoint.join("logits.f32"))?))
        });
        match logits {
            Ok((weights, logits)) => drop(references.insert(weights, logits)),
            Err(error) => {
                absent.push((format!("the logits of {}", worker::name(&which)), format!("{error:#}")));
            }
        }
    }
    references
}

fn compare(entry: &mut Entry, logits: &[f32], references: &HashMap<String, Vec<f32>>) {
    let result = &mut entry.result;
    if let Some(reference) = references.get("bf16") {
        result.error_to_bf16 = Some(distance(logits, reference));
        result.same_token = Some(argmax(logits) == argmax(reference));
    }
    // Other programs' quantized weights are not ours.
    if result.program == Program::Iree {
        result.error = references.get(&result.weights).map(|reference| distance(logits, reference));
    }
}

fn tell(round: usize, entry: &Entry, plan: &Plan) {
    let last = |of: &std::collections::BTreeMap<usize, Vec<f64>>, at: usize| {
        of.get(&at).and_then(|samples| samples.last()).copied().unwrap_or(f64::NAN)
    };
    let result = &entry.result;
    eprintln!(
        "round {}: {}: decode {:.2}, prefill {:.1} tokens/s",
        round + 1,
        result.name,
        last(&result.decode, plan.positions[0]),
        last(&result.prefill, plan.prefills[0])
    );
}

/// The versions of everything measured.
fn versions(entries: &[Entry]) -> Vec<(String, String)> {
    let mut versions: Vec<(String, String)> = Vec::new();
    for version in entries.iter().flat_map(|entry| &entry.versions) {
        if !versions.contains(version) {
            versions.push(version.clone());
        }
    }
    versions
}
