//! Texts that stop strings end, however tokens cut them.

use std::cell::OnceCell;
use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{Result, RowResult, SampledToken, SequenceId};
use mlxcel_session::{Model, Options, Tokenizer};

use super::place::storyteller;
use crate::{Format, Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "stop-strings",
    about: "stop strings and token ids, two bytes each: a text ends where a search of the whole text ends it, and nothing leaks",
    format: Format::Decisions,
    run,
    memory: 64,
    seconds: 10,
    stack: 2048,
    longest: 1024,
    seeds: super::none,
};

/// The most tokens of a text: the place of the reference engine's sequences, without the prompt.
const TOKENS: usize = 100;

thread_local! {
    static MODEL: OnceCell<Option<(Model, Tokenizer)>> = const { OnceCell::new() };
}

/// The story teller's tokenizer, with an engine that is never asked: tokens come from the input.
fn model() -> Result<(Model, Tokenizer)> {
    let tokenizer = Tokenizer::open(storyteller())?;
    let engine = ReferenceBackend::new().with_vocabulary(tokenizer.vocabulary_size()).model()?;
    Ok((Model::from_parts(Arc::clone(&engine), tokenizer.clone()), tokenizer))
}

fn run(input: &[u8]) -> Outcome {
    MODEL.with(|model_of| {
        let Some((model, tokenizer)) = model_of.get_or_init(|| model().ok()) else {
            return Outcome::new("no model");
        };
        end(model, tokenizer, input).unwrap_or_else(|error| Outcome::refused(&error))
    })
}

/// The first of the bytes, 0 behind their end.
fn next(input: &mut &[u8]) -> usize {
    let Some((&first, rest)) = input.split_first() else { return 0 };
    *input = rest;
    first.into()
}

fn end(model: &Model, tokenizer: &Tokenizer, mut input: &[u8]) -> Result<Outcome> {
    let count = next(&mut input) % 4;
    let cuts: Vec<(usize, usize)> = (0..count).map(|_| (next(&mut input), next(&mut input))).collect();
    let vocabulary = tokenizer.vocabulary_size();
    let id = |pair: &[u8]| (usize::from(pair[0]) << 8 | usize::from(pair[pair.len() - 1])) % vocabulary;
    let tokens: Vec<u32> = input.chunks(2).take(TOKENS).map(|pair| id(pair) as u32).collect();
    let whole = tokenizer.decode(&tokens, true)?;
    let chars: Vec<char> = whole.chars().collect();
    // Parts of the text, and now and then what is no part of it.
    let part = |&(at, length): &(usize, usize)| {
        let rest = &chars[at % chars.len().max(1)..];
        let mut string: String = rest.iter().take(1 + length % 16).collect();
        if string.is_empty() || length >= 240 {
            string.push('x');
        }
        string
    };
    let stops: Vec<String> = cuts.iter().map(part).collect();
    let mut options = Options::new(TOKENS).with_ignore_stop(true);
    for stop in &stops {
        options = options.with_stop_string(stop);
    }
    let mut generation = model.generation([0u32].as_slice(), &options)?;
    let (mut text, sequence) = (String::new(), SequenceId::new(0));
    let mut used = 0;
    let expected = naive(&whole, &stops);
    while let Some(row) = generation.row(sequence, usize::MAX) {
        let Some(&token) = tokens.get(used) else { break };
        let fed = row.tokens.len();
        generation.accept(fed, RowResult::Token(SampledToken::new(token, 0.0)))?;
        used += 1;
        text.push_str(&generation.take_text());
        assert!(expected.starts_with(&text), "{text:?} of {whole:?} with {stops:?}");
    }
    if let Some(stop) = generation.stop_string() {
        assert!(stops.iter().any(|known| known == stop), "{stop:?} is none of {stops:?}");
        assert_eq!(text, expected, "of {whole:?} with {stops:?}");
    } else {
        // The generation waits for what follows: what it holds back is the end of the text.
        assert!(expected.len() - text.len() <= held(&whole, &stops), "{text:?} of {whole:?} with {stops:?}");
    }
    Ok(Outcome::new(format!("{} {}", stops.len(), generation.stop_string().is_some())))
}

/// What is left of a text by the stop string that is complete first, of several the longest.
fn naive<'t>(text: &'t str, stops: &[String]) -> &'t str {
    let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
    let mut starts = ends.filter_map(|end| {
        let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
        complete.map(String::len).max().map(|longest| end - longest)
    });
    &text[..starts.next().unwrap_or(text.len())]
}

/// The most bytes that may be held back at the end of a text that goes on: the beginning of a stop string, and replaced characters of
/// which more may come.
fn held(text: &str, stops: &[String]) -> usize {
    let stop = stops.iter().map(String::len).max().unwrap_or(0);
    let unfinished = text.len() - text.trim_end_matches('\u{fffd}').len();
    stop + unfinished
}
