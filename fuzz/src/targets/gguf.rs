//! A GGUF file: its network, its weights, its tokenizer and its chat template.

use std::fs;

use mlxcel_core::Result;
use mlxcel_models::Checkpoint;
use mlxcel_session::Tokenizer;

use super::place::{Place, describe};
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
    seeds,
    ..Target::USUAL
};

thread_local! {
    static PLACE: Place = const { Place::new() };
}

const FILE: &str = "model.gguf";

fn run(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put(FILE, input);
        let tokenizer = Tokenizer::open(place.path().join(FILE));
        let tokenizer = tokenizer.map(|tokenizer| Outcome::new("tokenizer").then(use_it(&tokenizer)));
        Outcome::of(open(place)).then(Outcome::of(tokenizer))
    })
}

fn described(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put(FILE, input);
        Outcome::of(open(place))
    })
}

fn open(place: &Place) -> Result<Outcome> {
    let checkpoint = Checkpoint::open(place.path().join(FILE))?;
    for (name, view) in checkpoint.tensors() {
        let elements = view.shape.iter().product::<usize>();
        assert_eq!(view.element_type.byte_len(elements), Some(view.bytes.len()), "{name:?}");
    }
    Ok(Outcome::new("opened").then(Outcome::of(describe(&checkpoint))))
}

/// Tokenizers of both kinds; models are among the committed inputs.
fn seeds() -> Vec<Vec<u8>> {
    let folder = repository().join("fixtures/gguf-tokenizers");
    let names = ["sentencepiece.gguf", "llama-bpe.gguf"].into_iter();
    names.flat_map(|name| fs::read(folder.join(name))).collect()
}
