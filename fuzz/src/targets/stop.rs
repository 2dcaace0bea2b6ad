//! Texts that stop strings end, however tokens cut them.

use std::cell::OnceCell;
use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{Result, RowResult, SampledToken, SequenceId, TokenId};
use mlxcel_session::{Model, Options, Tokenizer};

use super::place::storyteller;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "stop-strings",
    about: "stop strings and token ids, two bytes each: a text ends where a search of the whole text ends it, and nothing leaks",
    format: Format::Decisions,
    run,
    memory: 64,
    seconds: 10,
    longest: 1024,
    ..Target::USUAL
};

/// The most tokens of a text: the capacity of the reference engine, without the prompt.
const TOKENS: usize = 100;

thread_local! {
    static MODEL: OnceCell<Option<Model>> = const { OnceCell::new() };
}

/// The story teller's tokenizer, with an engine that computes nothing: tokens come from the input.
fn model() -> Result<Model> {
    let tokenizer = Tokenizer::open(storyteller())?;
    let engine = ReferenceBackend::new().with_vocabulary(tokenizer.vocabulary_size()).model()?;
    Ok(Model::from_parts(Arc::clone(&engine), tokenizer))
}

fn run(input: &[u8]) -> Outcome {
    MODEL.with(|loaded| {
        let Some(model) = loaded.get_or_init(|| model().ok()) else { return Outcome::new("no model") };
        Outcome::of(end(model, input))
    })
}

/// The first of the bytes, 0 behind their end.
fn next(input: &mut &[u8]) -> usize {
    let Some((&first, rest)) = input.split_first() else { return 0 };
    *input = rest;
    first.into()
}

fn end(model: &Model, mut input: &[u8]) -> Result<Outcome> {
    let count = next(&mut input) % 4;
    let cuts: Vec<(usize, usize)> = (0..count).map(|_| (next(&mut input), next(&mut input))).collect();
    let vocabulary = model.info().vocabulary_size.max(1);
    let id = |pair: &[u8]| (usize::from(pair[0]) << 8 | usize::from(pair[pair.len() - 1])) % vocabulary;
    let tokens: Vec<TokenId> = input.chunks(2).take(TOKENS).map(|pair| id(pair) as TokenId).collect();
    if tokens.is_empty() {
        return Ok(Outcome::new("no tokens"));
    }
    // What a generation says that no string ends: which tokens have a text is not this target's question.
    let mut whole = String::new();
    generate(model, &tokens, &[], |text| whole.push_str(text))?;
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
    let (expected, mut text) = (search(&whole, &stops), String::new());
    let ended_by = generate(model, &tokens, &stops, |piece| {
        text.push_str(piece);
        let expected = expected.unwrap_or(&whole);
        assert!(expected.starts_with(&text), "{text:?} of {whole:?} with {stops:?}");
    })?;
    assert_eq!(text, expected.unwrap_or(&whole), "of {whole:?} with {stops:?}");
    assert_eq!(ended_by.is_some(), expected.is_some(), "{text:?} of {whole:?} with {stops:?}");
    assert!(
        ended_by.iter().all(|stop| stops.contains(stop) && whole[text.len()..].starts_with(stop)),
        "{ended_by:?} ended {text:?} of {whole:?}"
    );
    Ok(Outcome::new(format!("{} {}", stops.len(), ended_by.is_some())))
}

/// Has a generation choose `tokens`, and shows each piece of its text; the stop string that ended it.
fn generate(
    model: &Model,
    tokens: &[TokenId],
    stops: &[String],
    mut see: impl FnMut(&str),
) -> Result<Option<String>> {
    let mut options = Options::new(tokens.len()).with_ignore_stop(true);
    for stop in stops {
        options = options.with_stop_string(stop);
    }
    let mut generation = model.generation([0u32].as_slice(), &options)?;
    let mut tokens = tokens.iter();
    while let Some(row) = generation.row(SequenceId::new(0), usize::MAX)? {
        let Some(&token) = tokens.next() else { break };
        let fed = row.tokens.len();
        generation.accept(fed, RowResult::Tokens(vec![SampledToken::new(token, 0.0)]))?;
        see(&generation.take_text());
    }
    Ok(generation.stop_string().map(str::to_owned))
}

/// What is left of a text by the stop string that is complete first, the longest if there are several; `None`
/// if there is none.
fn search<'t>(text: &'t str, stops: &[String]) -> Option<&'t str> {
    let mut ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
    ends.find_map(|end| {
        let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
        Some(&text[..end - complete.map(String::len).max()?])
    })
}
