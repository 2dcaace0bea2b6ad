//! What a mask costs with a large vocabulary.

use std::fmt::Write;
use std::time::{Duration, Instant};

use mlxcel_session::{Constraint, ConstraintSource, Grammar, Tokenizer};
use serde_json::{Value, json};

use crate::structured::harness::{Chance, random_model};
use crate::support::tokenizer_of;

const SIZE: usize = 128_000;

/// A byte-level tokenizer of this many tokens: bytes, numbers, spaces, marks, and words by their letters'
/// chances.
fn large() -> Tokenizer {
    let letter = |byte: u8| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap(),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte) - 0x7f).unwrap(),
        0xad => '\u{143}',
    };
    let mut vocabulary: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
    vocabulary.extend((10..1000).map(|number| number.to_string()));
    for mark in [
        "\":", "\",", "\"}", "{\"", "}}", "[\"", "\"]", "],", "},", "=\"", "();", "\\\\", "\\n", "//", "<!--",
    ] {
        vocabulary.push(mark.to_owned());
        vocabulary.push(format!("Ġ{mark}"));
    }
    vocabulary.extend((2..80).map(|count| "Ġ".repeat(count)));
    let mut known: std::collections::HashSet<String> = vocabulary.iter().cloned().collect();
    let mut chance = Chance(5);
    let letters = b"eeeetttaaooiinnsshhrrddllcumwfgypbvk";
    while vocabulary.len() < SIZE - 1 {
        let mut word = if chance.one_in(2) { "Ġ".to_owned() } else { String::new() };
        (0..2 + chance.below(8)).for_each(|_| word.push(char::from(letters[chance.below(letters.len())])));
        if chance.one_in(12) {
            word = word.to_uppercase();
        }
        if known.insert(word.clone()) {
            vocabulary.push(word);
        }
    }
    let mut vocab = String::new();
    for (id, token) in vocabulary.iter().enumerate() {
        write!(vocab, "{}{}:{id}", if id == 0 { "" } else { "," }, Value::from(token.as_str())).unwrap();
    }
    let text = format!(
        r#"{{"version":"1.0","added_tokens":[{{"id":{},"content":"<|end|>","special":true}}],
        "pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true}},
        "decoder":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true}},
        "model":{{"type":"BPE","vocab":{{{vocab}}},"merges":[]}}}}"#,
        SIZE - 1
    );
    let config = r#"{"eos_token":"<|end|>"}"#;
    tokenizer_of(&[("tokenizer.json", &text), ("tokenizer_config.json", config)]).unwrap()
}

/// Samples a random text, and returns the time of each mask.
fn follow(constraint: &mut dyn Constraint, chance: &mut Chance, most: usize, end: u32) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() < most && !constraint.is_complete() {
        let start = Instant::now();
        let mask = constraint.mask().unwrap();
        times.push(start.elapsed());
        // Short tokens are where structure is; half of the choices are among them.
        let few = if chance.one_in(2) { 256 } else { SIZE };
        let token =
            (0..2000).map(|_| chance.below(few) as u32).find(|&token| mask.allows(token) && token != end);
        let Some(token) = token.or_else(|| (0..end).find(|&token| mask.allows(token))) else { break };
        constraint.accept(token).unwrap();
        for token in constraint.forced().unwrap() {
            constraint.accept(token).unwrap();
        }
    }
    times
}

#[test]
#[ignore = "a measurement: run it alone, and in release"]
fn a_mask_at_128000_tokens() {
    let model = random_model(&large(), 0);
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" }, "age": { "type": "integer" }, "email": { "type": "string", "format": "email" },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": 30 } },
            "address": { "type": "object", "properties": { "street": { "type": "string" }, "number": { "type": "number" } } },
            "kind": { "enum": ["person", "company", "unknown"] }
        },
        "required": ["name", "age", "tags", "address", "kind"],
        "additionalProperties": false
    });
    let start = Instant::now();
    Grammar::json_object().start(&model).map(drop).unwrap();
    println!("vocabulary: {:?}", start.elapsed());
    for (name, grammar) in [
        ("any object", Grammar::json_object()),
        ("a person", Grammar::json_schema(person)),
        ("a date", Grammar::regex("[12][0-9]{3}-[01][0-9]-[0-3][0-9]( [a-z]+)*")),
    ] {
        let (mut times, mut starts) = (Vec::new(), Vec::new());
        for seed in 0..20 {
            let start = Instant::now();
            let mut constraint = grammar.start(&model).unwrap();
            starts.push(start.elapsed());
            times.extend(
                follow(&mut *constraint, &mut Chance(seed), 200, SIZE as u32 - 1).into_iter().skip(1),
            );
        }
        times.sort_unstable();
        starts.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        let start = starts[starts.len() / 2];
        println!(
            "{name}: {} masks, median {:?}, 90 % {:?}, 99 % {:?}; start {start:?}",
            times.len(),
            at(50),
            at(90),
            at(99)
        );
    }
}
