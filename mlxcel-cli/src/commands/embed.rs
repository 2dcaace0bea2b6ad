//! Prints embeddings of texts and their cosine similarities.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use mlxcel_session::{EmbedOptions, LoadOptions, Pooling};
use serde::Serialize;

use crate::input;
use crate::model::ModelArguments;
use crate::progress::Progress;
use crate::report::{Failure, json_line};

/// Embed texts: for each a vector, pooled from the hidden states of its tokens
///
/// Prints a table of the cosines of the angles between the texts' vectors; `--json` prints the vectors too.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The texts; defaults to the lines of standard input but for blank ones
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// The hidden states that make the vector; defaults to the model's configuration, or to their mean
    #[arg(long, value_enum)]
    pooling: Option<Pool>,
    /// Leave vectors at the length that they have; they are scaled to length 1 otherwise
    #[arg(long)]
    raw: bool,
    /// Print a JSON object for each text on a line of its own: text, embedding, and cosines, those of the
    /// angles to the texts before it
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pool {
    /// Their mean
    Mean,
    /// That of the first token
    First,
    /// That of the last token
    Last,
}

/// What is printed of a text.
#[derive(Serialize)]
struct Output<'a> {
    text: &'a str,
    embedding: &'a [f32],
    cosines: Vec<f64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let texts = input::texts(&arguments.texts)?;
    let progress = Progress::new();
    let model = arguments.model.open(progress.watch(LoadOptions::default()))?;
    let mut options = EmbedOptions::default();
    if let Some(pooling) = arguments.pooling {
        options = options.with_pooling(match pooling {
            Pool::Mean => Pooling::Mean,
            Pool::First => Pooling::First,
            Pool::Last => Pooling::Last,
        });
    }
    if arguments.raw {
        options = options.with_normalize(false);
    }
    let vectors = model.embed_all(&texts, &options)?;
    progress.close();
    let mut out = io::stdout().lock();
    for (index, (text, vector)) in texts.iter().zip(&vectors).enumerate() {
        let cosines: Vec<f64> = vectors[..index].iter().map(|other| cosine(vector, other)).collect();
        if arguments.json {
            let output = Output { text, embedding: vector, cosines };
            json_line(&mut out, &output)?;
        } else {
            cosines.iter().try_for_each(|cosine| write!(out, "{cosine:>8.4}"))?;
            writeln!(out, "{:>8.4}  {text}", 1.0)?;
        }
    }
    if let Some(vector) = vectors.first().filter(|_| !arguments.json) {
        writeln!(out, "vectors of {} elements", vector.len())?;
    }
    Ok(out.flush()?)
}

/// The cosine of the angle between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    product(a, b) / (product(a, a) * product(b, b)).sqrt()
}
