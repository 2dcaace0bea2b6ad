//! The suite `speculation`: the cost of passes over several tokens of one sequence, and the gain from drafts,
//! on the IREE engine. All results are ratios within one round.
//!
//! Weights are random, so texts are too. The gain is therefore measured with a drafter that replays the plain
//! run's text with a given error rate, and with prompt lookup on sampled text, which never repeats, and on
//! text that masks confine to a cycle of tokens, with drafts and without. A checkpoint that stores a draft head
//! is measured with that too.

mod cycle;
mod drafters;
mod rows;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mlxcel_iree::IreeBackend;
use mlxcel_session::{
    Completion, ErrorKind, LoadOptions, Model, Options, SamplingParams, Speculation, TokenId,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::machine::Machine;
use crate::shapes::LLAMA_1B;
use crate::spread::{Spread, random_tokens, shuffled};
use cycle::Cycle;
use drafters::{Replay, Unguessable};

/// The tokens of a repeating text.
const CYCLE: usize = 12;

/// Measurements and their repetitions.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of checkpoints
    #[arg(long, default_value = "target/bench", hide = true)]
    folder: PathBuf,
    /// A checkpoint; defaults to random weights of Llama-3.2-1B's shapes in bf16, and in 4 bits
    #[arg(long, value_name = "DIR")]
    model: Vec<PathBuf>,
    /// How many times each is measured, in random order
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Tokens of each text
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Number of threads; defaults to the engine's choice
    #[arg(long)]
    threads: Option<usize>,
    /// Two rounds of 48 tokens
    #[arg(long)]
    quick: bool,
}

impl Arguments {
    fn rounds(&self) -> usize {
        if self.quick { 2 } else { self.rounds }
    }

    fn tokens(&self) -> usize {
        if self.quick { 48 } else { self.tokens }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Machine { processor, cores, .. } = Machine::of_this_process();
    let mut folders = arguments.model.clone();
    if folders.is_empty() {
        let dense = LLAMA_1B.provide(&arguments.folder)?;
        folders = vec![dense.clone(), LLAMA_1B.provide_quantized(&dense, 4)?];
    }
    for folder in folders {
        println!("{processor}, {cores} cores; {}; {} rounds\n", folder.display(), arguments.rounds());
        let mut load = LoadOptions::default().with_sequences(rows::MOST).with_capacity(1024);
        load.threads = arguments.threads;
        let model = open(&folder, load).context("loading")?;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        rows::run(&model, arguments.rounds(), if arguments.quick { 3 } else { 7 }, &mut random)?;
        texts(arguments, &model, &mut random)?;
    }
    Ok(())
}

/// The model, with its draft head if the checkpoint stores one.
fn open(folder: &Path, load: LoadOptions) -> Result<Model> {
    let backend = IreeBackend::new();
    match Model::load_with_draft_head(&backend, folder, &load) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => {
            Ok(Model::load(&backend, folder, &load)?)
        }
        opened => Ok(opened?),
    }
}

/// A text, and its drafter.
struct Case {
    name: String,
    prompt: Vec<TokenId>,
    plain: Options,
    guessed: Options,
}

impl Case {
    fn new(name: &str, (prompt, plain): (&[TokenId], &Options), speculation: Speculation) -> Self {
        let guessed = plain.clone().with_speculation(speculation);
        Self { name: name.to_owned(), prompt: prompt.to_vec(), plain: plain.clone(), guessed }
    }

    fn generate(&self, model: &Model, options: &Options) -> Result<Completion> {
        Ok(model.generate_tokens(&self.prompt, options)?.complete()?)
    }
}

/// The results of a case, by round.
#[derive(Default)]
struct Results {
    plain: Vec<f64>,
    gains: Vec<f64>,
    drafted: usize,
    accepted: usize,
    /// Rounds with different text with drafts than without.
    different: usize,
}

fn texts(arguments: &Arguments, model: &Model, random: &mut ChaCha8Rng) -> Result<()> {
    let cases = cases(arguments, model, random)?;
    let mut results: Vec<Results> = cases.iter().map(|_| Results::default()).collect();
    // The first round compiles, and measures the cost of drafts.
    for round in 0..=arguments.rounds() {
        for index in shuffled(cases.len(), random) {
            let (case, result) = (&cases[index], &mut results[index]);
            let guessed_first = random.next_u32().is_multiple_of(2);
            let early = guessed_first.then(|| case.generate(model, &case.guessed)).transpose()?;
            let plain = case.generate(model, &case.plain)?;
            let guessed = match early {
                Some(guessed) => guessed,
                None => case.generate(model, &case.guessed)?,
            };
            if round == 0 {
                continue;
            }
            let rate = |completion: &Completion| completion.usage.tokens_per_second().unwrap_or(f64::NAN);
            result.plain.push(rate(&plain));
            result.gains.push(rate(&guessed) / rate(&plain));
            result.drafted += guessed.usage.drafted_tokens;
            result.accepted += guessed.usage.accepted_tokens;
            result.different += usize::from(plain.tokens != guessed.tokens);
        }
    }
    println!("{:<38}{:<24}{:<24}guessed, right", "text", "plain, tokens a second", "with guesses beside it");
    for (case, result) in cases.iter().zip(&results) {
        let rounds = arguments.rounds();
        let Results { drafted, accepted, different, .. } = result;
        let (plain, gains) = (Spread::of(&result.plain).to_string(), Spread::of(&result.gains).to_string());
        let remark = match different {
            0 => String::new(),
            count => format!("; another text in {count} of {rounds} rounds"),
        };
        println!(
            "{:<38}{plain:<24}{gains:<24}{:.0}, {:.0}{remark}",
            case.name,
            *drafted as f64 / rounds as f64,
            *accepted as f64 / rounds as f64
        );
    }
    println!();
    Ok(())
}

/// The measured texts.
fn cases(arguments: &Arguments, model: &Model, random: &mut ChaCha8Rng) -> Result<Vec<Case>> {
    let greedy =
        Options::new(arguments.tokens()).with_ignore_stop(true).with_sampling(SamplingParams::greedy());
    let drawn = greedy.clone().with_sampling(SamplingParams::greedy().with_temperature(1.0).with_seed(3));
    let vocabulary = model.info().vocabulary_size;
    let prompt = &random_tokens(vocabulary, 24, random);
    let text = &model.generate_tokens(prompt, &greedy)?.complete()?.tokens;
    let cycle = Cycle(random_tokens(vocabulary, CYCLE, random));
    let cycling = greedy.clone().with_ignore_stop(false).with_constraint(cycle);
    let replay = |wrong: usize| Speculation::new(Replay::new(prompt, text, wrong));
    let greedily = (prompt.as_slice(), &greedy);
    let mut cases = vec![
        Case::new("replayed, wrong in 1 of 5", greedily, replay(5)),
        Case::new("replayed, wrong in 1 of 2", greedily, replay(2)),
        Case::new("replayed, always wrong", greedily, replay(1)),
        Case::new("lookup, a cycle of 12 tokens", (prompt, &cycling), Speculation::lookup()),
        Case::new("lookup, drawn text", (prompt, &drawn), Speculation::lookup()),
        Case::new("random guesses, drawn text", (prompt, &drawn), Speculation::new(Unguessable)),
    ];
    if let Ok(head) = model.draft_head() {
        cases.push(Case::new("its draft head", greedily, Speculation::new(head)));
    }
    Ok(cases)
}
