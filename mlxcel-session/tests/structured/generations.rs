//! Grammars in streams, in batches, with engines that choose, and where texts end.

use std::sync::Arc;

use mlxcel_session::schemars::{self, JsonSchema};
use mlxcel_session::{
    Engine, ErrorKind, FinishReason, Grammar, Model, Options, Request, Speculation, TokenId,
};
use serde_json::{Value, json};

use crate::structured::harness::{hot, random, random_model, say, storyteller, tokenizer};
use crate::support::Replay;

fn fox() -> Grammar {
    Grammar::json_schema(json!({
        "type": "object",
        "properties": {
            "first_name": { "type": "string", "maxLength": 12 },
            "favourite_colour": { "enum": ["red", "green"] },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 }
        },
        "required": ["first_name", "favourite_colour", "age"],
        "additionalProperties": false
    }))
}

fn is_fox(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap();
    value["first_name"].is_string() && value["favourite_colour"].is_string() && value["age"].is_u64()
}

#[test]
fn output_matches_choices_expressions_and_grammars() {
    let tokenizer = tokenizer();
    for seed in 0..20 {
        let one = say(&tokenizer, Grammar::choices(["yes", "no", "say \"perhaps\""]), 50, seed).unwrap();
        assert!(["yes", "no", "say \"perhaps\""].contains(&one.text.as_str()), "{}", one.text);
        assert_eq!(one.finish_reason, FinishReason::Stop);
        let date = say(&tokenizer, Grammar::regex(r"[12][0-9]{3}-[01][0-9]"), 50, seed).unwrap();
        assert!(date.text.len() == 7 && date.text.as_bytes()[4] == b'-', "{}", date.text);
        let sum = "start: NUMBER (\" + \" NUMBER)*\nNUMBER: /[1-9][0-9]{0,2}/";
        let sum = say(&tokenizer, Grammar::lark(sum), 200, seed).unwrap();
        assert!(sum.text.split(" + ").all(|number| number.parse::<u32>().is_ok()), "{}", sum.text);
    }
}

#[test]
fn forced_tokens_share_a_row_and_stream_one_by_one() {
    let tokenizer = tokenizer();
    let random = random(&tokenizer, 1);
    let model = Model::from_parts(Arc::new(random.clone()), tokenizer);
    let mut stream = model.generate("x", &hot(200, 1).with_grammar(fox())).unwrap();
    let mut text = String::new();
    let mut told = Vec::new();
    while let Some(token) = stream.next_token() {
        told.push(token.unwrap().token);
        assert_eq!(stream.tokens(), told);
        text.push_str(&stream.take_text());
    }
    text.push_str(&stream.take_text());
    assert!(is_fox(&text), "{text}");
    assert_eq!((stream.finish_reason(), stream.logprobs().len()), (Some(FinishReason::Stop), told.len()));
    let rows: Vec<usize> = random.fed.lock().unwrap().iter().map(|(_, tokens)| tokens.len()).collect();
    assert!(rows[1..].iter().any(|&tokens| tokens > 3), "{rows:?}");
    assert!(rows.len() < told.len(), "{rows:?} for {} tokens", told.len());
}

#[test]
fn speculation_changes_no_token_under_grammars() {
    let model = Model::open(storyteller()).unwrap();
    let engine = Engine::new(model.clone()).unwrap();
    let prompt = "Once upon a time";
    let length = model.tokenizer().unwrap().encode(prompt, true).unwrap().len();
    let grammars = [fox(), Grammar::regex("(ab|c ){3,9}"), Grammar::choices(["yes indeed", "no"])];
    let (mut drafted, mut accepted) = (0, 0);
    for (case, grammar) in grammars.iter().cycle().take(9).enumerate() {
        // The host chooses in the first, the engine in others.
        let options = if case < 6 { hot(80, case as u64) } else { Options::new(80) };
        let options = options.with_grammar(grammar.clone());
        let plain = model.generate(prompt, &options).unwrap().complete().unwrap();
        let replay = Replay { prompt: length, text: plain.tokens.clone(), wrong: 3 };
        for speculation in [Speculation::new(replay).with_width(4), Speculation::lookup().with_width(6)] {
            let speculating = options.clone().with_speculation(speculation);
            let alone = model.generate(prompt, &speculating).unwrap().complete().unwrap();
            let batched = engine.generate(prompt, &speculating).unwrap().complete().unwrap();
            for speculated in [alone, batched] {
                assert_eq!(speculated.tokens, plain.tokens, "case {case}");
                assert_eq!((&speculated.text, speculated.finish_reason), (&plain.text, plain.finish_reason));
                drafted += speculated.usage.drafted_tokens;
                accepted += speculated.usage.accepted_tokens;
            }
        }
    }
    assert!(accepted > 0 && accepted < drafted, "{accepted} of {drafted}");
}

#[test]
fn a_text_without_its_last_forced_tokens_is_truncated() {
    let tokenizer = tokenizer();
    let choice = "once upon a time there was a fox";
    let whole = say(&tokenizer, Grammar::choices([choice]), 100, 1).unwrap();
    assert_eq!((whole.text.as_str(), whole.finish_reason), (choice, FinishReason::Stop));
    let model = random_model(&tokenizer, 1);
    let engine = Engine::new(model).unwrap();
    for tokens in 1..=whole.tokens.len() {
        let expected = if tokens < whole.tokens.len() { FinishReason::Length } else { FinishReason::Stop };
        let cut = say(&tokenizer, Grammar::choices([choice]), tokens, 1).unwrap();
        assert_eq!((cut.tokens.len(), cut.finish_reason), (tokens, expected));
        let options = hot(tokens, 1).with_grammar(Grammar::choices([choice]));
        let batched = engine.generate("x", &options).unwrap().complete().unwrap();
        assert_eq!((batched.text, batched.finish_reason), (cut.text, expected));
    }
}

#[test]
fn a_truncated_text_is_reported() {
    let tokenizer = tokenizer();
    for tokens in 1..30 {
        let cut = say(&tokenizer, fox(), tokens, 3).unwrap();
        assert!(cut.tokens.len() <= tokens && cut.logprobs.len() == cut.tokens.len());
        if cut.finish_reason == FinishReason::Stop {
            assert!(is_fox(&cut.text));
        } else {
            assert_eq!((cut.finish_reason, cut.tokens.len()), (FinishReason::Length, tokens));
            assert!(serde_json::from_str::<Value>(&cut.text).is_err());
        }
    }
}

#[test]
fn impossible_grammars_are_rejected_before_any_work() {
    let tokenizer = tokenizer();
    for (grammar, said) in [
        (Grammar::regex("[^\\s\\S]"), "grammar"),
        (Grammar::regex("(a"), "grammar"),
        (Grammar::lark("start: missing"), "grammar"),
        (Grammar::choices([""]), "choice"),
        (Grammar::choices(Vec::<String>::new()), "choice"),
        (Grammar::json_schema(json!(false)), "grammar"),
        (Grammar::json_schema(json!({"type": "integer", "minimum": 3, "maximum": 2})), "grammar"),
        (Grammar::json_schema(json!({"type": "array", "uniqueItems": true})), "grammar"),
        (Grammar::json_schema(json!({"$ref": "https://example.com/schema.json"})), "grammar"),
        (Grammar::json_schema(json!({"x-guidance": {"lenient": true}})), "x-guidance"),
    ] {
        let options = Options::new(10).with_grammar(grammar.clone());
        let error = random_model(&tokenizer, 1).generate("x", &options).unwrap_err();
        assert!(error.to_string().contains(said), "{grammar:?}: {error}");
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported), "{error}");
    }
    let options = Options::new(10).with_grammar(fox()).with_ignore_stop(true);
    let error = random_model(&tokenizer, 1).generate("x", &options).unwrap_err();
    assert_eq!(error.context("field"), Some("ignore_stop"));
}

#[test]
fn grammars_apply_to_device_sampling_and_batches() {
    let model = Model::open(storyteller()).unwrap();
    let alone: Vec<_> = (0..4)
        .map(|seed| {
            let options = hot(120, seed).with_grammar(fox());
            model.generate("Once upon a time", &options).unwrap().complete().unwrap()
        })
        .collect();
    let engine = Engine::new(model.clone()).unwrap();
    let greedy = engine.generate("Once upon a time", &Options::new(20)).unwrap();
    let streams: Vec<_> = (0..4)
        .map(|seed| {
            let request = Request::new("Once upon a time").with_options(hot(120, seed).with_grammar(fox()));
            engine.submit(request).unwrap()
        })
        .collect();
    for (stream, alone) in streams.into_iter().zip(alone) {
        let together = stream.complete().unwrap();
        assert_eq!((&together.text, together.finish_reason), (&alone.text, alone.finish_reason));
        assert!(together.finish_reason == FinishReason::Stop && is_fox(&together.text), "{}", together.text);
        assert_eq!(together.tokens, alone.tokens);
    }
    let plain = model.generate("Once upon a time", &Options::new(20)).unwrap().complete().unwrap();
    assert_eq!(greedy.complete().unwrap().text, plain.text);
}

#[test]
fn grammars_never_produce_special_tokens() {
    let tokenizer = tokenizer();
    for seed in 0..10 {
        let text = say(&tokenizer, Grammar::regex("(?s).{20,60}"), 100, seed).unwrap();
        assert!(text.tokens.iter().all(|&token| !tokenizer.is_special(token)), "{}", text.text);
        assert!(text.text.chars().count() <= 60);
    }
}

#[derive(Debug, JsonSchema, serde::Deserialize)]
#[allow(dead_code)]
struct Fox {
    #[schemars(length(max = 10))]
    name: String,
    age: u8,
    den: Option<Den>,
    #[schemars(length(max = 3))]
    friends: Vec<Friend>,
}

#[derive(Debug, JsonSchema, serde::Deserialize)]
#[allow(dead_code)]
struct Den {
    depth: u16,
}

#[derive(Debug, JsonSchema, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Friend {
    Owl,
    Hare,
}

#[test]
fn typed_generation_returns_values() {
    let tokenizer = tokenizer();
    for seed in 0..20 {
        let model = random_model(&tokenizer, seed);
        let fox: Fox = model.generate_as("x", &hot(400, seed)).unwrap();
        assert!(fox.name.chars().count() <= 10 && fox.friends.len() <= 3, "{fox:?}");
    }
    let model = random_model(&tokenizer, 1);
    let error = model.generate_as::<Fox>("x", &hot(5, 1)).unwrap_err();
    assert_eq!(error.context("finish_reason"), Some("length"));
}

/// A type with nested, optional, flattened and tagged parts.
mod types {
    use std::collections::BTreeMap;

    use mlxcel_session::schemars::{self, JsonSchema};
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize, JsonSchema)]
    pub struct Trip {
        pub id: u8,
        #[serde(flatten)]
        pub how: How,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stop: Option<Stop>,
        pub then: Vec<Leg>,
        pub notes: BTreeMap<String, bool>,
    }

    #[derive(Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(tag = "by", rename_all = "lowercase")]
    pub enum How {
        Train { class: u8 },
        Car(Stop),
        Foot,
    }

    #[derive(Debug, Serialize, Deserialize, JsonSchema)]
    pub struct Stop {
        pub night: bool,
    }

    #[derive(Debug, Serialize, Deserialize, JsonSchema)]
    pub enum Leg {
        Stay,
        Go { far: bool },
        Stop(Stop),
    }
}

/// Options that make a model of random logits go on behind each value.
fn talkative(seed: u64) -> Options {
    let tokenizer = tokenizer();
    let mut options = hot(300, seed);
    let commas = (0..tokenizer.vocabulary_size() as TokenId)
        .filter(|&token| tokenizer.token_bytes(token).is_some_and(|bytes| bytes.first() == Some(&b',')));
    options.sampling.logit_bias = commas.map(|token| (token, 9.0)).collect();
    options
}

#[test]
fn a_model_cannot_invent_fields_of_a_type() {
    let tokenizer = tokenizer();
    let (mut whole, mut invented) = (0, 0);
    for seed in 0..30 {
        let model = random_model(&tokenizer, seed);
        let say = |grammar| {
            model.generate("x", &talkative(seed).with_grammar(grammar)).unwrap().complete().unwrap()
        };
        let open = say(Grammar::of_open_type::<types::Stop>());
        invented += usize::from(open.text.matches("\": ").count() > 1);
        let closed = say(Grammar::of_type::<types::Trip>());
        if closed.finish_reason == FinishReason::Stop {
            let trip: types::Trip = closed.parse().unwrap();
            let mut said: Value = serde_json::from_str(&closed.text).unwrap();
            let fields = said.as_object_mut().unwrap();
            fields.retain(|name, value| name != "stop" || !value.is_null());
            assert_eq!(serde_json::to_value(trip).unwrap(), said, "the type has all that was said");
            whole += 1;
        }
    }
    assert!(whole > 10 && invented > 10, "{whole} {invented}");
}
