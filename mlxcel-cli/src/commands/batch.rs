//! Continues the prompts of a file, many at once.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_session::mlxcel_core::one_line;
use mlxcel_session::{
    AsPrompt, Completion, Engine, LoadOptions, Message, Options, PrefixCache, Prompt, Result as ModelResult,
};
use serde::{Deserialize, Serialize};

use crate::input;
use crate::model::ModelArguments;
use crate::progress::Progress;
use crate::report::{Failure, json_line};
use crate::sampling::SamplingArguments;

/// Continue the prompts of a file, as many at once as the engine computes together
///
/// Each line of the file is a prompt: a text, or a JSON object with `prompt` (a text) or `messages` (a
/// conversation, for the chat template). The answers come as JSON lines in the order of the prompts: index,
/// text, finish_reason, prompt_tokens, reused_tokens, generated_tokens; or index and error for a prompt that
/// could not be continued. The last line on standard error reports the throughput. It failed if no prompt
/// could be continued.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The prompts; `-` reads them from standard input
    #[arg(value_name = "FILE")]
    prompts: PathBuf,
    /// Where the answers go; defaults to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on behind the answers that the file of --out has, of an interrupted run over the same prompts
    #[arg(long, requires = "out")]
    resume: bool,
    /// The most tokens of each answer
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256)]
    max_tokens: usize,
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
}

impl AsPrompt for Line {
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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let prompts = prompts(arguments)?;
    let answers = arguments.out.as_deref().map(|path| Answers::open(path, arguments.resume)).transpose()?;
    let done = answers.as_ref().map_or(0, |answers| answers.done);
    if done > prompts.len() {
        let have = format!("it has {done} answers, but there are {} prompts", prompts.len());
        return Err(Failure::Usage(format!("resume: {have}")));
    }
    let progress = Progress::new();
    let mut model = arguments.model.open(progress.watch(LoadOptions::default()))?;
    progress.close();
    if arguments.prefix_cache > 0 {
        model = model.with_prefix_cache(PrefixCache::new(arguments.prefix_cache.saturating_mul(1 << 20)));
    }
    let options = Options::new(arguments.max_tokens).with_sampling(arguments.sampling.params(&model)?);
    let engine = Engine::new(model)?;
    let mut out: Box<dyn Write> = match answers {
        Some(answers) => Box::new(answers.begin()?),
        None => Box::new(io::stdout()),
    };

    let (start, bar) = (Instant::now(), bar(prompts.len()));
    bar.set_position(done as u64);
    let mut succeeded = 0;
    let completions = engine.map(prompts[done..].iter(), |_| options.clone());
    for (index, (_, completion)) in (done..).zip(completions) {
        succeeded += usize::from(completion.is_ok());
        json_line(&mut *out, &Answer::of(index, completion))?;
        // For an interrupted run to be resumed behind it.
        out.flush()?;
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

/// The file of answers. It is not changed before the model is ready.
struct Answers<'a> {
    path: &'a Path,
    file: File,
    /// How many answers are there already, and their bytes.
    done: usize,
    length: u64,
}

impl<'a> Answers<'a> {
    /// Opens the file, and counts the answers that are there if `resume`.
    fn open(path: &'a Path, resume: bool) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        options.read(resume).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(|error| unwritten(path, &error))?;
        let mut answers = Self { path, file, done: 0, length: 0 };
        if resume {
            answers.count()?;
        }
        Ok(answers)
    }

    fn count(&mut self) -> Result<(), Failure> {
        let (mut lines, mut line) = (BufReader::new(&self.file), Vec::new());
        while lines.read_until(b'\n', &mut line).map_err(|error| unwritten(self.path, &error))? > 0 {
            let done = self.done;
            let is_whole = line.ends_with(b"\n");
            let is_own = if is_whole { is_answer(&line, done) } else { begins_answer(&line, done) };
            if !is_own {
                let (path, number) = (self.path.display(), done + 1);
                return Err(Failure::Usage(format!("resume {path}: line {number} is not answer {done}")));
            }
            if is_whole {
                self.done += 1;
                self.length += line.len() as u64;
            }
            line.clear();
        }
        Ok(())
    }

    /// Removes everything behind the answers that are there: the file's earlier content, or an answer that
    /// was cut off. Pipes and devices have nothing to remove.
    fn begin(mut self) -> Result<File, Failure> {
        let mut cut = || -> io::Result<()> {
            if self.file.metadata()?.is_file() {
                self.file.set_len(self.length)?;
                self.file.seek(SeekFrom::End(0))?;
            }
            Ok(())
        };
        cut().map_err(|error| unwritten(self.path, &error))?;
        Ok(self.file)
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::Usage(format!("write {}: {error}", path.display()))
}

/// Whether a line is the answer number `index`.
fn is_answer(line: &[u8], index: usize) -> bool {
    #[derive(Deserialize)]
    struct Written {
        index: usize,
    }
    serde_json::from_slice::<Written>(line).is_ok_and(|answer| answer.index == index)
}

/// Whether a line that was cut off can be the beginning of the answer number `index`.
fn begins_answer(line: &[u8], index: usize) -> bool {
    let start = format!("{{\"index\":{index},");
    line.starts_with(start.as_bytes()) || start.as_bytes().starts_with(line)
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
