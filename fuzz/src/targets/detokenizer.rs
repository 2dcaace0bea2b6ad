//! Tokens of any order as text, piece by piece.

use std::cell::OnceCell;

use mlxcel_core::Result;
use mlxcel_session::{Detokenizer, Tokenizer};

use super::place::storyteller;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "detokenizer",
    about: "token ids, two bytes each: the pieces of their text are together what they decode to",
    format: Format::Decisions,
    run,
    memory: 64,
    seconds: 10,
    longest: 4096,
    ..Target::USUAL
};

/// How many tokens a character surely waits for its end.
const PATIENCE: usize = 250;

thread_local! {
    static TOKENIZER: OnceCell<Option<Tokenizer>> = const { OnceCell::new() };
}

fn run(input: &[u8]) -> Outcome {
    TOKENIZER.with(|tokenizer| {
        let Some(tokenizer) = tokenizer.get_or_init(|| Tokenizer::open(storyteller()).ok()) else {
            return Outcome::new("no tokenizer");
        };
        Outcome::of(stream(tokenizer, input))
    })
}

fn stream(tokenizer: &Tokenizer, input: &[u8]) -> Result<Outcome> {
    let vocabulary = tokenizer.vocabulary_size() as u32;
    // A few are beyond the vocabulary.
    let id = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair[pair.len() - 1]);
    let tokens: Vec<u32> = input.chunks(2).map(|pair| id(pair) % (vocabulary + 2)).collect();
    let mut pieces = String::new();
    // Tokens since one whose character is not finished; with too many of them it is given up.
    let (mut waiting, mut given_up) = (0, false);
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
    for &token in &tokens {
        match detokenizer.push(token)? {
            Some(piece) => {
                assert!(!piece.is_empty(), "an empty piece");
                pieces.push_str(&piece);
                waiting = 0;
            }
            None if waiting > 0 || !tokenizer.decode(&[token], true)?.is_empty() => waiting += 1,
            None => {}
        }
        given_up |= waiting > PATIENCE;
    }
    pieces.push_str(&detokenizer.finish()?.unwrap_or_default());
    assert!(detokenizer.finish()?.is_none(), "there is more behind the end");
    let whole = tokenizer.decode(&tokens, true)?;
    assert!(given_up || pieces == whole, "{pieces:?} is not {whole:?}, of {tokens:?}");
    Ok(Outcome::new(format!("{} {given_up}", whole.contains('\u{fffd}'))))
}
