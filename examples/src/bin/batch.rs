//! Continues the prompts of a file, many at once.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_examples::{Failure, Progress, SamplingArguments, input, json_line, launch, one_line, open_model};
use mlxcel_session::{
    Completion, Engine, LoadOptions, Message, Options, PrefixCache, Prompt, Request, RequestStream,
    Result as ModelResult,
};
use serde::{Deserialize, Serialize};

/// Continue the prompts of a file, as many at once as the engine computes together.
///
/// Each line of the file is a prompt: a text, or a JSON object with `prompt` (a text) or `messages` (a conversation, for the
/// chat template).
/// The answers come as JSON lines in the order of the prompts: index, text, finish_reason, prompt_tokens, reused_tokens,
/// generated_tokens; or
/// index and error for a prompt that could not be continued. The last line on standard error reports the throughput. Exit
/// status: 0; 2 for bad
/// arguments or input; 1 for anything else, and where no prompt could be continued; then one line on standard error says what went wrong.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The checkpoint folder, GGUF file, or `org/name` in the Hugging Face cache; defaults to the bundled story teller
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Run the compiled programs that lie in the checkpoint's folder, if it is a bundle; only for a folder whose writer you trust
    #[arg(long, requires = "model")]
    trust_bundle: bool,
    /// The prompts; `-` reads them from standard input
    #[arg(value_name = "FILE")]
    prompts: PathBuf,
    /// Where the answers go; defaults to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The most tokens of each answer
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// The engine: iree (or xla), mlx, portable; defaults to what MLXCEL_BACKEND names, else to the first of these that is compiled in
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The mebibytes of memory for beginnings that prompts share; 0 computes each prompt whole
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    prefix_cache: u64,
    #[command(flatten)]
    sampling: SamplingArguments,
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Prompt { prompt: String },
    Messages { messages: Vec<Message> },
}

impl Line {
    fn read(text: String, number: usize) -> Result<Self, Failure> {
        if !text.starts_with('{') {
            return Ok(Self::Prompt { prompt: text });
        }
        serde_json::from_str(&text).map_err(|_| {
            Failure::Usage(format!(
                "line {number} is not an object with the string `prompt` or the list `messages`"
            ))
        })
    }

    fn as_prompt(&self) -> Prompt<'_> {
        match self {
            Self::Prompt { prompt } => prompt.into(),
            Self::Messages { messages } => messages.into(),
        }
    }
}

/// What is written for a prompt.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Text {
        index: usize,
        text: String,
        finish_reason: &'static str,
        prompt_tokens: usize,
        reused_tokens: usize,
        generated_tokens: usize,
    },
    Failed {
        index: usize,
        error: String,
    },
}

impl Answer {
    fn of(index: usize, completion: ModelResult<Completion>) -> Self {
        match completion {
            Ok(Completion { text, finish_reason, usage, .. }) => Self::Text {
                index,
                text,
                finish_reason: finish_reason.as_str(),
                prompt_tokens: usage.prompt_tokens,
                reused_tokens: usage.reused_tokens,
                generated_tokens: usage.generated_tokens,
            },
            Err(error) => Self::Failed { index, error: one_line(&error) },
        }
    }
}

fn main() -> ExitCode {
    launch(|arguments| run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let prompts = prompts(arguments)?;
    let mut out: Box<dyn Write> = match &arguments.out {
        Some(path) => Box::new(BufWriter::new(
            File::create(path)
                .map_err(|error| Failure::Usage(format!("write {}: {error}", path.display())))?,
        )),
        None => Box::new(io::stdout()),
    };
    let progress = Progress::new();
    let (folder, name) = (arguments.model.as_deref(), arguments.backend.as_deref());
    let load = progress.watch(LoadOptions::default());
    let mut model = open_model(folder, arguments.trust_bundle, name, &load)?;
    progress.close();
    if arguments.prefix_cache > 0 {
        model = model.with_prefix_cache(PrefixCache::new(arguments.prefix_cache.saturating_mul(1 << 20)));
    }
    let options = Options::new(arguments.max_tokens).with_sampling(arguments.sampling.params(&model)?);
    let engine = Engine::new(model)?;

    let start = Instant::now();
    let mut batch =
        Batch { bar: bar(prompts.len()), out: &mut *out, next: 0, succeeded: 0, waiting: VecDeque::new() };
    for line in &prompts {
        // The answers before are read while this one waits for its place.
        while batch.waiting.len() >= 2 * engine.model().capabilities().sequences {
            batch.finish_one()?;
        }
        let request = Request::new(line.as_prompt()).with_options(options.clone());
        batch.waiting.push_back(engine.submit_within(request, PATIENCE));
    }
    while !batch.waiting.is_empty() {
        batch.finish_one()?;
    }
    let succeeded = batch.succeeded;
    batch.bar.finish_and_clear();
    out.flush()?;
    let (stats, seconds) = (engine.stats(), start.elapsed().as_secs_f64());
    writeln!(
        io::stderr(),
        "{succeeded} of {} prompts, {} tokens in {seconds:.1} s: {:.1} tokens a second, {:.1} a pass",
        prompts.len(),
        stats.generated_tokens,
        stats.generated_tokens as f64 / seconds,
        stats.computed_tokens as f64 / stats.passes.max(1) as f64,
    )?;
    match succeeded {
        0 if !prompts.is_empty() => Err(Failure::Finding("no prompt could be continued".to_owned())),
        _ => Ok(()),
    }
}

/// No more are submitted than the queue holds, so this is never waited for.
const PATIENCE: Duration = Duration::from_secs(60);

struct Batch<'a> {
    bar: ProgressBar,
    out: &'a mut dyn Write,
    /// The number of the answer that is written next.
    next: usize,
    succeeded: usize,
    waiting: VecDeque<ModelResult<RequestStream>>,
}

impl Batch<'_> {
    /// Waits for the oldest answer and writes it.
    fn finish_one(&mut self) -> Result<(), Failure> {
        let Some(stream) = self.waiting.pop_front() else { return Ok(()) };
        let completion = stream.and_then(RequestStream::complete);
        self.succeeded += usize::from(completion.is_ok());
        json_line(&mut *self.out, &Answer::of(self.next, completion))?;
        self.next += 1;
        self.bar.inc(1);
        Ok(())
    }
}

fn prompts(arguments: &Arguments) -> Result<Vec<Line>, Failure> {
    let path = &arguments.prompts;
    let mut lines: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file =
            File::open(path).map_err(|error| Failure::Usage(format!("read {}: {error}", path.display())))?;
        Box::new(BufReader::new(file))
    };
    let mut prompts = Vec::new();
    let mut number = 0;
    while let Some(text) = input::line(&mut lines)? {
        number += 1;
        if !text.trim().is_empty() {
            prompts.push(Line::read(text, number)?);
        }
    }
    Ok(prompts)
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
