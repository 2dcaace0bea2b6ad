//! Finds the text that means most nearly what a question does, by embeddings.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use mlxcel_session::{EmbedOptions, Model};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

const TEXTS: [&str; 4] = [
    "The fox slept under the old oak.",
    "A red ball rolled into the river.",
    "The owl flew over the forest at night.",
    "Bees make honey in the summer.",
];

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // A model that was trained for embeddings does this much better than a story teller.
    let model = Model::open(MODEL)?;
    let options = EmbedOptions::default();
    let vectors = model.embed_all(&TEXTS, &options)?;
    let question = model.embed("Where did the fox sleep?", &options)?;
    // Vectors have length 1, so their product is the cosine of the angle between them.
    let cosine = |vector: &[f32]| vector.iter().zip(&question).map(|(a, b)| a * b).sum::<f32>();
    let mut found: Vec<_> = TEXTS.iter().zip(&vectors).map(|(text, vector)| (cosine(vector), text)).collect();
    found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    for (cosine, text) in found {
        writeln!(stdout(), "{cosine:.3}  {text}")?;
    }
    Ok(())
}
