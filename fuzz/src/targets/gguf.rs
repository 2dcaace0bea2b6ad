//! A GGUF file: its network, its weights, its tokenizer and its chat template.

use std::fs;

use mlxcel_core::Result;
use mlxcel_models::Checkpoint;
use mlxcel_session::Tokenizer;

use super::place::Place;
use super::tokenizer::use_it;
use crate::corpus::repository;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "gguf",
    about: "model.gguf: opened, described, every weight read, and texts encoded with its tokenizer",
    format: Format::Gguf,
    run,
    quick: Some(described),
    memory: 512,
    seconds: 20,
    stack: 2048,
    longest: 64 << 10,
    seeds,
};

thread_local! {
    static PLACE: Place = const { Place::new() };
}

const FILE: &str = "model.gguf";

fn run(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put(FILE, input);
        let opened = open(place).unwrap_or_else(|error| Outcome::refused(&error));
        opened.then(match Tokenizer::open(place.path().join(FILE)) {
            Ok(tokenizer) => Outcome::new("tokenizer").then(use_it(&tokenizer)),
            Err(error) => Outcome::refused(&error),
        })
    })
}

fn described(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put(FILE, input);
        open(place).unwrap_or_else(|error| Outcome::refused(&error))
    })
}

fn open(place: &Place) -> Result<Outcome> {
    let checkpoint = Checkpoint::open(place.path().join(FILE))?;
    for (name, view) in checkpoint.tensors() {
        let elements = view.shape.iter().product::<usize>();
        assert_eq!(view.element_type.byte_len(elements), Some(view.bytes.len()), "{name:?}");
    }
    checkpoint.fingerprint();
    let outcome = Outcome::new("opened");
    Ok(outcome.then(match checkpoint.decoder() {
        Ok(decoder) => {
            for weight in decoder.weights().flat_map(mlxcel_models::WeightRef::tensors) {
                assert_eq!(checkpoint.weight(weight)?.bytes.len(), weight.byte_len());
            }
            Outcome::new(decoder)
        }
        Err(error) => Outcome::refused(&error),
    }))
}

/// Tokenizers of both kinds; models are among the committed inputs.
fn seeds() -> Vec<Vec<u8>> {
    let folder = repository().join("fixtures/gguf-tokenizers");
    ["sentencepiece.gguf", "llama-bpe.gguf"]
        .into_iter()
        .flat_map(|name| fs::read(folder.join(name)))
        .collect()
}
