//! Prints the log probability of a text, or of several continuations of it.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use mlxcel_session::{ContinuationScore, LoadOptions, Model, ScoreOptions, TextScore, TokenId};
use serde::Serialize;

use crate::input;
use crate::model::ModelArguments;
use crate::numbers::positive;
use crate::progress::Progress;
use crate::report::{Failure, Likely, print};

/// Score a text: the log probability of each token after those before it, and the perplexity of all
///
/// A text that is longer than the context is scored in windows that overlap. With `--continuation` the text
/// is a prompt, each continuation is scored after it, and the most likely one is marked.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The text; `-` reads it from standard input
    #[arg(long, value_name = "TEXT", required_unless_present = "file", conflicts_with = "file")]
    text: Option<String>,
    /// A file with the text
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A continuation of the text; can be repeated
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["top", "stride"])]
    continuation: Vec<String>,
    /// Also report the N most likely tokens at each position
    #[arg(long, value_name = "N", default_value_t = 0)]
    top: u16,
    /// The distance in tokens between windows of a text longer than the context; defaults to half of the
    /// context
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    stride: Option<usize>,
    /// Print one JSON object
    ///
    /// Of a text: tokens, pieces (their texts), logprobs (null for the first), logprob (their sum),
    /// perplexity, and with --top, top: for each token the most likely ones, each with token and
    /// logprob. Of continuations: continuations, each with text, tokens, logprobs, logprob and
    /// is_greedy; best, the index of the most likely one.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct TextOutput<'a> {
    tokens: &'a [TokenId],
    pieces: Vec<String>,
    logprobs: &'a [Option<f32>],
    logprob: f64,
    perplexity: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top: Vec<Vec<Likely>>,
}

#[derive(Serialize)]
struct ContinuationsOutput<'a> {
    continuations: Vec<ContinuationOutput<'a>>,
    best: usize,
}

#[derive(Serialize)]
struct ContinuationOutput<'a> {
    text: &'a str,
    tokens: &'a [TokenId],
    logprobs: &'a [f32],
    logprob: f64,
    is_greedy: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let text = text(arguments)?;
    let progress = Progress::new();
    let model = arguments.model.open_generating(progress.watch(LoadOptions::default()))?;
    if arguments.continuation.is_empty() {
        let mut options = ScoreOptions::default().with_top(arguments.top);
        options.stride = arguments.stride;
        let score = model.score(&text, &options)?;
        progress.close();
        print(arguments.json, &text_output(&model, &score), |out, _| write_text(out, &model, &score))
    } else {
        let scores = model.likelihood(&text, &arguments.continuation, None)?;
        progress.close();
        let output = continuations_output(&arguments.continuation, &scores);
        print(arguments.json, &output, |out, output| write_continuations(out, output))
    }
}

fn text(arguments: &Arguments) -> Result<String, Failure> {
    let text = match (&arguments.file, arguments.text.as_deref()) {
        (Some(path), _) => input::file(path)?,
        (None, Some("-")) => input::text(io::stdin().lock())?,
        (None, text) => text.unwrap_or_default().to_owned(),
    };
    Ok(text)
}

/// The text of a token by itself.
fn piece(model: &Model, token: TokenId) -> String {
    let bytes = model.tokenizer().ok().and_then(|tokenizer| tokenizer.token_bytes(token));
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

fn text_output<'a>(model: &Model, score: &'a TextScore) -> TextOutput<'a> {
    let asked = score.top.iter().any(|top| !top.is_empty());
    TextOutput {
        tokens: &score.tokens,
        pieces: score.tokens.iter().map(|&token| piece(model, token)).collect(),
        logprobs: &score.logprobs,
        logprob: score.logprob(),
        perplexity: score.perplexity(),
        top: score.top.iter().filter(|_| asked).map(|top| top.iter().map(Likely::from).collect()).collect(),
    }
}

fn continuations_output<'a>(texts: &'a [String], scores: &'a [ContinuationScore]) -> ContinuationsOutput<'a> {
    let best = (0..scores.len()).max_by(|&a, &b| scores[a].logprob().total_cmp(&scores[b].logprob()));
    let one = |(text, score): (&'a String, &'a ContinuationScore)| ContinuationOutput {
        text,
        tokens: &score.tokens,
        logprobs: &score.logprobs,
        logprob: score.logprob(),
        is_greedy: score.is_greedy,
    };
    ContinuationsOutput {
        continuations: texts.iter().zip(scores).map(one).collect(),
        best: best.unwrap_or_default(),
    }
}

fn write_text(out: &mut impl Write, model: &Model, score: &TextScore) -> io::Result<()> {
    writeln!(out, "{:>10}  {:>7}  text", "logprob", "token")?;
    for ((&token, logprob), top) in score.tokens.iter().zip(&score.logprobs).zip(&score.top) {
        let logprob = logprob.map_or_else(String::new, |logprob| format!("{logprob:.4}"));
        write!(out, "{logprob:>10}  {token:>7}  {:?}", piece(model, token))?;
        for entry in top {
            write!(out, "  {:?} {:.4}", piece(model, entry.token), entry.logprob)?;
        }
        writeln!(out)?;
    }
    writeln!(out, "log probability {:.4}, perplexity {:.4}", score.logprob(), score.perplexity())
}

fn write_continuations(out: &mut impl Write, output: &ContinuationsOutput<'_>) -> io::Result<()> {
    for (index, continuation) in output.continuations.iter().enumerate() {
        let mark = if index == output.best { '*' } else { ' ' };
        writeln!(out, "{mark} {:>10.4}  {:?}", continuation.logprob, continuation.text)?;
    }
    Ok(())
}
