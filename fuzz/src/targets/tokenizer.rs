//! A tokenizer's file, and what it makes of texts and tokens.

use std::fs;
use std::thread::LocalKey;

use mlxcel_core::Result;
use mlxcel_session::{Detokenizer, Tokenizer};

use super::place::{Place, storyteller};
use crate::corpus::repository;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "tokenizer",
    about: "tokenizer.json: read, and texts of many kinds encoded, decoded and streamed with it",
    run,
    memory: 512,
    longest: 256 << 10,
    seeds,
    ..Target::USUAL
};

pub(super) const WORLD: Target = Target {
    name: "tokenizer-world",
    about: "the vocabulary of RWKV World: read, and texts of many kinds encoded, decoded and streamed with it",
    format: Format::Decisions,
    run: run_world,
    seeds: world_seeds,
    ..TARGET
};

thread_local! {
    static PLACE: Place = const { Place::new() };
    static WORLD_PLACE: Place = const { Place::new() };
}

const TEXTS: [&str; 10] = [
    "",
    " ",
    "a",
    "hello world, hello",
    "   \n\n\t two  ",
    "é你😀\u{301}\u{fdfa}ﬁ",
    "<unk>a <s> b</s>",
    "<0x41><|im_start|>user",
    "▁hello▁##b",
    "\u{0}\u{ad}\u{200d}\u{feff}\u{1f468}\u{200d}\u{1f469}",
];

fn run(input: &[u8]) -> Outcome {
    open(&PLACE, "tokenizer.json", input)
}

fn run_world(input: &[u8]) -> Outcome {
    open(&WORLD_PLACE, "rwkv_vocab_v20230424.txt", input)
}

/// Uses the tokenizer that `input` is as the file `name`.
fn open(place: &'static LocalKey<Place>, name: &str, input: &[u8]) -> Outcome {
    place.with(|place| {
        place.put(name, input);
        let opened = Tokenizer::open(place.path());
        Outcome::of(opened.map(|tokenizer| Outcome::new("opened").then(use_it(&tokenizer))))
    })
}

pub(super) fn use_it(tokenizer: &Tokenizer) -> Outcome {
    let mut outcome = Outcome::default();
    let long = "ab hello ".repeat(100);
    for text in TEXTS.into_iter().chain([&*long]) {
        let words = tokenizer.encode(text, true).and_then(|tokens| {
            let (decoded, streamed) = (tokenizer.decode(&tokens, false)?, stream(tokenizer, &tokens)?);
            Ok(Outcome::new(decoded == text).then(Outcome::new(streamed == decoded)))
        });
        outcome = outcome.then(Outcome::of(words));
    }
    for tokens in [&[][..], &[0], &[0, 1, 2, 3, 4, 5], &[u32::MAX], &[255, 256, 257]] {
        for skip in [false, true] {
            if let Err(error) = tokenizer.decode(tokens, skip) {
                outcome = outcome.then(Outcome::refused(&error));
            }
        }
    }
    for id in [0, 1, 300, u32::MAX] {
        tokenizer.token(id);
    }
    tokenizer.vocabulary_size();
    outcome
}

/// The text of the tokens, piece by piece.
fn stream(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), false);
    let mut text = String::new();
    for &token in tokens {
        text.push_str(&detokenizer.push(token)?.unwrap_or_default());
    }
    text.push_str(&detokenizer.finish()?.unwrap_or_default());
    Ok(text)
}

fn seeds() -> Vec<Vec<u8>> {
    fs::read(storyteller().join("tokenizer.json")).into_iter().collect()
}

fn world_seeds() -> Vec<Vec<u8>> {
    let folder = repository().join("mlxcel-session/tests/fixtures/rwkv-world");
    fs::read(folder.join("rwkv_vocab_v20230424.txt")).into_iter().collect()
}
