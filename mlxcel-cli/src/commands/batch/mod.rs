//! Continues the prompts of a file, many at once.

mod answers;
mod prompts;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_session::mlxcel_core::one_line;
use mlxcel_session::{Completion, Engine, LoadOptions, Options, PrefixCache, Result as ModelResult};
use serde_json::{Value, json};

use crate::model::ModelArguments;
use crate::numbers::positive;
use crate::progress::Progress;
use crate::report::Failure;
use crate::sampling::GreedyArguments;
use answers::{Answers, Existing, Sink};

/// Continue the prompts of a file, as many at once as the engine computes together
///
/// Each line of the file is a prompt: a text, or a JSON object with `prompt` (a text) or `messages` (a
/// conversation, for the chat template). The answers come as JSON lines in the order of the prompts: index,
/// text, finish_reason, prompt_tokens, reused_tokens, generated_tokens; or index, error and kind for a prompt
/// that could not be continued. The last line on standard error reports the throughput. The command fails if
/// no prompt could be continued.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The prompts; `-` reads them from standard input
    #[arg(value_name = "FILE")]
    prompts: PathBuf,
    /// The file for the answers; defaults to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Continue after the answers in the file of --out, of an interrupted run over the same prompts. Errors
    /// of the prompts, such as one that is too long, are kept; from the first other error on, such as a fault
    /// of the device, prompts are tried again
    #[arg(long, requires = "out")]
    resume: bool,
    /// Replace the file of --out if it has content
    #[arg(long, requires = "out", conflicts_with = "resume")]
    force: bool,
    /// The maximum number of tokens of each answer
    #[arg(short = 'n', long = "max-tokens", visible_alias = "n-predict", value_name = "N",
        default_value_t = 256, value_parser = positive::<usize>)]
    max_tokens: usize,
    /// The mebibytes of memory for prefixes that prompts share; 0 disables it
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    prefix_cache: u64,
    #[command(flatten)]
    sampling: GreedyArguments,
}

/// What is written for a prompt.
fn answer(index: usize, completion: ModelResult<Completion>) -> Value {
    match completion {
        Ok(Completion { text, finish_reason, usage, .. }) => json!({
            "index": index, "text": text, "finish_reason": finish_reason.as_str(),
            "prompt_tokens": usage.prompt_tokens, "reused_tokens": usage.reused_tokens,
            "generated_tokens": usage.generated_tokens,
        }),
        Err(error) => json!({ "index": index, "error": one_line(&error), "kind": error.kind().as_str() }),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let prompts = prompts::read(&arguments.prompts)?;
    let answers = arguments.out.as_deref();
    let answers = answers.map(|path| Answers::open(path, &arguments.prompts, existing(arguments)));
    let answers = answers.transpose()?;
    let (done, found) = answers.as_ref().map_or((0, 0), |answers| (answers.done, answers.found));
    if found > prompts.len() {
        let have = format!("it has {found} answers, but there are {} prompts", prompts.len());
        return Err(Failure::Usage(format!("resume: {have}")));
    }
    let progress = Progress::new();
    let mut model = arguments.model.open_generating(progress.watch(LoadOptions::default()))?;
    progress.close();
    model.tokenizer()?;
    if arguments.prefix_cache > 0 {
        model = model.with_prefix_cache(PrefixCache::new(arguments.prefix_cache.saturating_mul(1 << 20)));
    }
    let options = Options::new(arguments.max_tokens).with_sampling(arguments.sampling.params(&model)?);
    let engine = Engine::new(model)?;
    let mut sink = answers.map_or_else(|| Ok(Sink::stdout()), Answers::begin)?;

    let (start, bar) = (Instant::now(), bar(prompts.len()));
    bar.set_position(done as u64);
    let mut succeeded = 0;
    let completions = engine.map(prompts[done..].iter(), |_| {
        let mut options = options.clone();
        arguments.sampling.draw_seed(&mut options.sampling);
        options
    });
    for (index, (_, completion)) in (done..).zip(completions) {
        succeeded += usize::from(completion.is_ok());
        sink.write(&answer(index, completion))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (stats, seconds) = (engine.stats(), start.elapsed().as_secs_f64());
    writeln!(
        io::stderr(),
        "{succeeded} of {} prompts, {} tokens in {seconds:.1} s: {:.1} tok/s, {:.1} a pass",
        prompts.len() - done,
        stats.generated_tokens,
        stats.generated_tokens as f64 / seconds,
        stats.computed_tokens as f64 / stats.passes.max(1) as f64,
    )?;
    match succeeded {
        0 if prompts.len() > done => Err(Failure::Finding("no prompt could be continued".to_owned())),
        _ => Ok(()),
    }
}

fn existing(arguments: &Arguments) -> Existing {
    match arguments {
        Arguments { resume: true, .. } => Existing::Resume,
        Arguments { force: true, .. } => Existing::Replace,
        _ => Existing::Keep,
    }
}

fn bar(prompts: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(prompts as u64);
    match ProgressStyle::with_template("{spinner} {bar:30} {pos}/{len} prompts {elapsed} (left {eta})") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
