//! Streams several texts at once from one model, each as it comes.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use futures_util::stream::{StreamExt, select_all};
use mlxcel_examples::{Failure, ModelArguments, Progress, SamplingArguments, launch};
use mlxcel_session::{AsyncRequestStream, Engine, LoadOptions, Options, Result};

/// Stream the continuations of several prompts at once, in steps that they share.
///
/// Each piece of text is a line of its own: the number of its prompt, a tab, and the piece as a JSON string. What each text took follows on
/// standard error. Exit status: 0; 2 for bad arguments or input; 1 for anything else; then one line on standard error says what went wrong.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The texts to continue
    #[arg(value_name = "PROMPT", required = true)]
    prompts: Vec<String>,
    /// The most tokens of each text
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArguments,
}

fn main() -> ExitCode {
    launch(|arguments| run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::new();
    let model = arguments.model.open(progress.watch(LoadOptions::default()))?;
    progress.close();
    let options = Options::new(arguments.max_tokens).with_sampling(arguments.sampling.params(&model)?);
    let engine = Engine::new(model)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(stream(&engine, &arguments.prompts, &options))
}

async fn stream(engine: &Engine, prompts: &[String], options: &Options) -> Result<(), Failure> {
    let streams =
        prompts.iter().map(|prompt| engine.generate(prompt, options)).collect::<Result<Vec<_>>>()?;
    // With the feature `async`, a request is a `Stream` of its pieces; this one also reports its usage at the end.
    let mut pieces = select_all(streams.into_iter().enumerate().map(|(number, stream)| {
        futures_util::stream::unfold(Some(stream.into_async()), move |stream| next(number + 1, stream))
            .boxed()
    }));
    while let Some(line) = pieces.next().await {
        match line? {
            Line::Piece(number, piece) => {
                writeln!(io::stdout(), "{number}\t{}", serde_json::json!(piece))?;
                io::stdout().flush()?;
            }
            Line::End(line) => writeln!(io::stderr(), "{line}")?,
        }
    }
    Ok(())
}

enum Line {
    Piece(usize, String),
    End(String),
}

/// The next line about the text `number`; after its end, what it took, and then nothing.
async fn next(
    number: usize,
    stream: Option<AsyncRequestStream>,
) -> Option<(Result<Line>, Option<AsyncRequestStream>)> {
    let mut stream = stream?;
    match stream.next().await {
        Some(piece) => Some((piece.map(|piece| Line::Piece(number, piece)), Some(stream))),
        None => {
            let usage = stream.usage();
            let reason = stream.finish_reason().map_or("", |reason| reason.as_str());
            let rate = usage.tokens_per_second().unwrap_or(0.0);
            let line =
                format!("{number}: {} tokens, {reason}, {rate:.1} tokens a second", usage.generated_tokens);
            Some((Ok(Line::End(line)), None))
        }
    }
}
