//! Grammars of someone who means harm: refused or followed, within bounds of time and memory.

use std::time::{Duration, Instant};

use mlxcel_session::{ErrorKind, Grammar, Message, Options, Tool, ToolChoice, Tools};
use serde_json::{Value, json};

use crate::structured::harness::{say, tokenizer};
use crate::structured::tools::tools_of;
use crate::support::cpu_time;

fn nested(depth: usize) -> Value {
    (0..depth).fold(
        json!({ "type": "string" }),
        |inner, _| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] }),
    )
}

/// Each level merges the one below twice.
fn exponential(levels: usize, with: &str) -> Value {
    let mut definitions = serde_json::Map::new();
    definitions
        .insert("d0".to_owned(), json!({ "type": "object", "properties": { "x": { "type": "integer" } } }));
    for level in 1..=levels {
        let below = json!({ "$ref": format!("#/$defs/d{}", level - 1) });
        definitions.insert(format!("d{level}"), json!({ with: [below, below, { "type": "object" }] }));
    }
    json!({ "$defs": definitions, "$ref": format!("#/$defs/d{levels}") })
}

/// A chain of definitions: each refers to the next one, as `link` says.
fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
    let reference = |number: usize| json!({ "$ref": format!("#/$defs/d{number}") });
    let mut definitions: serde_json::Map<String, Value> =
        (0..length).map(|number| (format!("d{number}"), link(reference(number + 1)))).collect();
    definitions.insert(format!("d{length}"), json!({ "type": "null" }));
    json!({ "$defs": definitions, "$ref": "#/$defs/d0" })
}

#[test]
fn long_chains_of_references_are_too_complex() {
    let tokenizer = tokenizer();
    let plain = |next| next;
    let field = |next| json!({ "type": "object", "properties": { "a": next } });
    let part = |next| json!({ "allOf": [next] });
    let beside = |mut next: Value| {
        next["type"] = "null".into();
        next
    };
    let first = |next| json!({ "prefixItems": [next] });
    for schema in [
        chain(20_000, plain),
        chain(9_000, field),
        chain(12_000, part),
        chain(16_000, beside),
        chain(12_000, first),
        // Shorter ones that are merged.
        chain(300, plain),
        chain(150, part),
    ] {
        let error = say(&tokenizer, Grammar::json_schema(schema), 4, 7).unwrap_err();
        assert_eq!((error.kind(), error.context("most_values")), (ErrorKind::TooComplex, None));
    }
    let embedded = format!("start: %json {}", chain(4_000, first));
    let error = say(&tokenizer, Grammar::lark(embedded), 4, 7).unwrap_err();
    assert_eq!(error.context("deepest_followed"), Some("4000"));
    for schema in [chain(100, plain), chain(600, field), chain(700, first)] {
        say(&tokenizer, Grammar::json_schema(schema), 4, 7).unwrap();
    }
}

#[test]
fn hostile_grammars_give_a_text_or_an_error() {
    let tokenizer = tokenizer();
    let alternatives = |count: usize| -> Value {
        (0..count)
            .map(|n| json!({ "type": "string", "pattern": format!("^a{{{n},{}}}b*$", n + 9) }))
            .collect()
    };
    let many: serde_json::Map<String, Value> =
        (0..3000).map(|n| (format!("property{n}"), json!({ "type": "string" }))).collect();
    let patterns: serde_json::Map<String, Value> =
        (0..40).map(|n| (format!("^(a|b)*{n}(a|b){{20}}$"), json!({ "type": "integer" }))).collect();
    let product = vec![json!({ "anyOf": alternatives(30) }); 3];
    let rules: String = (0..2000).map(|n| format!("r{n}: r{} r{}\n", n + 1, n + 1)).collect();
    let schemas = [
        ("deep", nested(40)),
        ("deeper than deep", nested(100_000 / 100)),
        ("references doubled", exponential(30, "allOf")),
        ("alternatives doubled", exponential(30, "anyOf")),
        ("exclusive doubled", exponential(12, "oneOf")),
        ("product", json!({ "allOf": product })),
        ("itself", json!({ "$ref": "#" })),
        ("all of itself", json!({ "allOf": [{ "$ref": "#" }, { "type": "object" }] })),
        ("long", json!({ "type": "string", "minLength": 1_000_000_000 })),
        ("many", json!({ "type": "array", "items": { "type": "integer" }, "minItems": 2_000_000_000_u64 })),
        ("wide", json!({ "type": "object", "properties": many })),
        ("patterns", json!({ "type": "object", "patternProperties": patterns })),
        ("pattern", json!({ "type": "string", "pattern": "^(([a-z]{1,100}){1,100}){1,100}$" })),
    ];
    let others = [
        ("exponents", Grammar::regex("(a?){500}a{500}")),
        ("automaton", Grammar::regex("(a|b)*a(a|b){200}c")),
        ("repeats", Grammar::regex("((x{1000}){1000}){1000}")),
        ("brackets", Grammar::regex("(".repeat(100_000))),
        ("classes", Grammar::regex(r"(\p{L}|\p{N}|\p{S}){5000}")),
        ("ambiguous", Grammar::lark("start: a\na: a a | \"x\" | a a a")),
        ("rules", Grammar::lark(rules + "start: r0\nr2000: \"x\"")),
        ("nothing", Grammar::lark("start: a\na: b\nb: a")),
    ];
    for (name, grammar) in
        schemas.map(|(name, schema)| (name, Grammar::json_schema(schema))).into_iter().chain(others)
    {
        let start = Instant::now();
        let said = say(&tokenizer, grammar, 20, 7);
        let took = start.elapsed();
        println!(
            "{name}: {took:?}, {:?}",
            said.as_ref().map(|said| said.text.len()).map_err(ToString::to_string)
        );
        let kind = said.as_ref().err().map(mlxcel_session::Error::kind);
        match name {
            "itself" | "nothing" => assert_eq!(kind, Some(ErrorKind::InvalidInput), "{name}"),
            "repeats" => assert_eq!(kind, Some(ErrorKind::TooComplex), "{name}"),
            _ => {}
        }
        // The time that a grammar may take, and much for a busy machine.
        assert!(took.as_secs() < 60, "{name}: {took:?}");
    }
}

#[test]
fn grammars_that_take_too_much_work_are_refused_soon() {
    let tokenizer = tokenizer();
    let of = |divisor: f64| json!({ "type": "integer", "multipleOf": divisor });
    let union: Vec<_> = (0..20).map(|n| of(99_983.0 + f64::from(n))).collect();
    let many: serde_json::Map<String, Value> =
        (0..20).map(|n| (format!("p{n}"), of(99_983.0 + f64::from(n)))).collect();
    for (name, schema) in [
        ("a large prime", of(999_983.0)),
        ("a larger one", of(9_999_991.0)),
        ("of any number", json!({ "type": "number", "multipleOf": 999_983 })),
        ("a product that overflows", json!({ "allOf": [of(999_983.0), of(999_979.0)] })),
        ("alternatives", json!({ "anyOf": union })),
        ("properties", json!({ "type": "object", "properties": many })),
    ] {
        let start = Instant::now();
        let error = say(&tokenizer, Grammar::json_schema(schema), 20, 7).unwrap_err();
        println!("{name}: {:?} {error:?}", start.elapsed());
        assert_eq!(error.kind(), ErrorKind::TooComplex, "{name}: {error:?}");
        assert!(!format!("{error:?}").contains("panic"), "{error:?}");
    }
    // What is about as long and less work is not refused.
    say(&tokenizer, Grammar::json_schema(of(1e6)), 20, 7).unwrap();
}

/// The result of offering one tool with these parameters to a model of a style, on a small stack.
fn offer(style: &str, parameters: Value) -> mlxcel_session::Result<()> {
    let tools = tools_of(style, [Tool::new("set", "", parameters).definition().clone()]);
    let tools = tools.with_choice(ToolChoice::Required).unwrap();
    let offer = move || tools.offer(&mut vec![Message::user("x")], &mut Options::default());
    std::thread::Builder::new().stack_size(512 << 10).spawn(offer).unwrap().join().unwrap()
}

#[test]
fn parameters_of_long_chains_of_references_are_offered() {
    let mut parameters = chain(700, |next| json!({ "type": "object", "properties": { "a": next } }));
    parameters = json!({ "properties": { "a": { "$ref": "#/$defs/d0" } }, "$defs": parameters["$defs"] });
    for style in ["pythonic", "gemma4", "minimax-m3", "qwen-coder"] {
        offer(style, parameters.clone()).unwrap();
    }
}

#[test]
fn definitions_are_not_repeated_without_bounds() {
    for (part, kind) in
        [(json!({ "$ref": "#/$defs/a" }), Some(ErrorKind::TooComplex)), (json!({ "type": "integer" }), None)]
    {
        let fields: serde_json::Map<String, Value> =
            (0..200).map(|n| (format!("f{n}"), part.clone())).collect();
        let long = json!({ "type": "integer", "description": "x".repeat(500_000) });
        let parameters = json!({ "properties": fields, "$defs": { "a": long } });
        for style in ["qwen-coder", "minimax-m3"] {
            assert_eq!(offer(style, parameters.clone()).err().map(|error| error.kind()), kind, "{style}");
        }
    }
}

#[test]
fn parameters_of_many_combined_objects_and_long_names_are_closed_soon() {
    let fields: serde_json::Map<String, Value> =
        (0..20_000).map(|n| (format!("f{n}"), true.into())).collect();
    let combined = vec![json!({ "allOf": [{ "$ref": "#/$defs/a" }, {}] }); 4000];
    let long = json!({ "x".repeat(500_000): { "enum": vec![0; 40_000] } });
    for parameters in [
        json!({ "properties": { "any": { "anyOf": combined } }, "$defs": { "a": { "properties": fields } } }),
        json!({ "properties": long }),
    ] {
        let start = cpu_time();
        offer("hermes", parameters).unwrap();
        assert!(cpu_time() - start < Duration::from_secs(4), "{:?}", cpu_time() - start);
    }
}

#[test]
fn many_tools_are_checked_soon() {
    let tools = (0..100_000).map(|number| Tool::new(format!("t{number}"), "", Value::Null));
    let start = cpu_time();
    Tools::new(&tokenizer(), tools).unwrap();
    assert!(cpu_time() - start < Duration::from_secs(4), "{:?}", cpu_time() - start);
}
