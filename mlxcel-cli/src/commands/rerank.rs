//! Sorts documents by how well they answer a query.

use std::io::{self, Write};

use clap::Args;
use mlxcel_session::{LoadOptions, RerankOptions};
use serde::Serialize;

use crate::input;
use crate::model::ModelArguments;
use crate::progress::Progress;
use crate::report::{Failure, json_line};

/// Rerank documents: sort them by how well they answer a query, the best first
///
/// Needs a reranker: an encoder with a classifier of one class, such as cross-encoder/ms-marco-MiniLM-L6-v2,
/// or a decoder that answers yes or no, such as Qwen3-Reranker.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The query
    #[arg(value_name = "QUERY")]
    query: String,
    /// The documents; defaults to the lines of standard input but for blank ones
    #[arg(value_name = "DOCUMENT")]
    documents: Vec<String>,
    /// The instruction for decoders that answer yes or no; defaults to that of Qwen3-Reranker for searches
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// Print probabilities, the sigmoid of the scores
    #[arg(long)]
    probabilities: bool,
    /// Print a JSON object for each document on a line of its own: index (of the document in the input), text,
    /// and score
    #[arg(long)]
    json: bool,
}

/// What is printed of a document.
#[derive(Serialize)]
struct Output<'a> {
    index: usize,
    text: &'a str,
    score: f32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let documents = input::texts(&arguments.documents)?;
    let progress = Progress::new();
    let model = arguments.model.open(progress.watch(LoadOptions::default()))?;
    let mut options = RerankOptions::default().with_probabilities(arguments.probabilities);
    options.instruction.clone_from(&arguments.instruction);
    let scores = model.rerank(&arguments.query, &documents, &options)?;
    progress.close();
    let ranked = documents.iter().zip(scores).enumerate();
    let mut ranked: Vec<_> = ranked.map(|(index, (text, score))| Output { index, text, score }).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut out = io::stdout().lock();
    for document in &ranked {
        if arguments.json {
            json_line(&mut out, document)?;
        } else {
            writeln!(out, "{:>9.4}  {}", document.score, document.text)?;
        }
    }
    Ok(out.flush()?)
}
