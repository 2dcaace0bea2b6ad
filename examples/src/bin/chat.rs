//! A conversation in the terminal, on one sequence: each turn computes only what is new.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mlxcel_examples::{Engine, EngineOptions, Failure, Progress, bundled, input, launch, one_line};
use mlxcel_session::{
    Conversation, ErrorKind, FinishReason, LoadOptions, Message, Model, ModelSource, Options, TextStream,
};

/// Talk with a language model. An empty line, or the end of the input, ends the conversation. Where the context is full, the oldest
/// turns are forgotten.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The checkpoint folder; the bundled story teller where none is given
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Run the compiled programs that lie in the checkpoint's folder, if it is a bundle. They are machine code: only for a folder whose
    /// writer you trust. Bundles that this machine wrote need it not
    #[arg(long, requires = "model")]
    trust_bundle: bool,
    /// Instructions that stand above the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The engine: iree (or xla), mlx, portable; else what MLXCEL_BACKEND names, else the first of these that is compiled in
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// How many threads compute; the engine's choice where none is given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Draw tokens at this temperature; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// What draws depend on: the same seed gives the same answers
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    launch(run)
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    let progress = Progress::new();
    let mut load = progress.watch(LoadOptions::default());
    load.threads = arguments.threads;
    let engine = Engine::select(EngineOptions {
        name: arguments.backend.as_deref(),
        trust: arguments.model.as_deref().filter(|_| arguments.trust_bundle),
        ..EngineOptions::default()
    })?;
    let source = arguments.model.map_or_else(bundled::storyteller, ModelSource::Folder);
    let model = Model::load(&engine.backend, source, &load)?;
    let mut conversation = model.conversation()?;
    if let Some(system) = arguments.system {
        conversation.push(Message::system(system));
    }
    let options = Options::new(1024)
        .with_temperature(arguments.temperature)
        .with_seed(arguments.seed)
        .with_skip_special_tokens(true);
    let mut unanswered = 0;
    loop {
        ask()?;
        let line = input::line(io::stdin().lock())?.unwrap_or_default();
        if line.trim().is_empty() {
            break;
        }
        unanswered += usize::from(!answer(&mut conversation, line.trim(), &options, &progress)?);
    }
    match unanswered {
        0 => Ok(()),
        count => Err(Failure::Finding(format!("{count} of the lines got no answer"))),
    }
}

/// Asks for a line where a person would see it.
fn ask() -> io::Result<()> {
    if !io::stdin().is_terminal() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    write!(out, "> ")?;
    out.flush()
}

/// Answers a line, and forgets the oldest turns until it fits; false where it does not even alone.
fn answer(
    conversation: &mut Conversation,
    line: &str,
    options: &Options,
    progress: &Progress,
) -> Result<bool, Failure> {
    let mut forgotten = 0;
    loop {
        let error = match conversation.say(line, options) {
            Ok(stream) => {
                if forgotten > 0 {
                    note(progress, &format!("the context is full, and turns were forgotten: {forgotten}"));
                }
                return print(stream, options, progress).map(|()| true);
            }
            Err(error) => error,
        };
        if error.kind() != ErrorKind::CapacityExceeded {
            return Err(error.into());
        }
        if !conversation.forget_oldest_turn() {
            note(progress, &one_line(&error));
            return Ok(false);
        }
        forgotten += 1;
    }
}

/// Prints an answer as it comes.
fn print(mut stream: TextStream<'_>, options: &Options, progress: &Progress) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    for piece in &mut stream {
        let piece = piece?;
        progress.close();
        out.write_all(piece.as_bytes())?;
        out.flush()?;
    }
    writeln!(out)?;
    let is_cut =
        stream.finish_reason() == Some(FinishReason::Length) && stream.tokens().len() < options.max_tokens;
    if is_cut {
        note(progress, "the context is full, and the answer is cut");
    }
    Ok(())
}

/// Says what a person should know beside the answers.
fn note(progress: &Progress, words: &str) {
    progress.close();
    // Nobody is left to tell where standard error cannot be written either.
    let _ = writeln!(io::stderr(), "note: {words}");
}
