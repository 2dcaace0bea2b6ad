//! Random schemas: output under them is valid.

use mlxcel_session::{ErrorKind, FinishReason, Grammar};
use serde_json::{Map, Value, json};

use crate::structured::harness::{Chance, say, tokenizer};

/// A schema with definitions that refer to one another, and to themselves.
fn schema(seed: u64) -> Value {
    let mut chance = Chance(seed);
    let mut schema = value(&mut chance, 3);
    let definitions: Map<String, Value> =
        (0..3).map(|number| (format!("d{number}"), definition(&mut chance, number))).collect();
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$defs".to_owned(), Value::Object(definitions));
    }
    schema
}

/// An object that may hold others of its own kind.
fn definition(chance: &mut Chance, number: usize) -> Value {
    let mut properties = Map::new();
    properties.insert("v".to_owned(), scalar(chance));
    properties
        .insert("next".to_owned(), json!({ "$ref": format!("#/$defs/d{}", (number + chance.below(2)) % 3) }));
    json!({ "type": "object", "properties": properties, "required": ["v"], "additionalProperties": false })
}

fn value(chance: &mut Chance, depth: usize) -> Value {
    match chance.below(if depth == 0 { 5 } else { 10 }) {
        0..=3 => scalar(chance),
        4 => json!({ "$ref": format!("#/$defs/d{}", chance.below(3)) }),
        5 | 6 => object(chance, depth - 1),
        7 => {
            let items = value(chance, depth - 1);
            let least = chance.below(2);
            json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + chance.below(3) })
        }
        8 => json!({ "anyOf": [value(chance, depth - 1), value(chance, depth - 1)] }),
        _ => {
            json!({ "type": "array", "prefixItems": [value(chance, depth - 1), scalar(chance)], "items": false })
        }
    }
}

fn object(chance: &mut Chance, depth: usize) -> Value {
    let names = ["name", "age", "a b", "\"quoted\"", "größe", "x"];
    let count = 1 + chance.below(4);
    let properties: Map<String, Value> =
        names[..count].iter().map(|name| ((*name).to_owned(), value(chance, depth))).collect();
    let required: Vec<_> = names[..count].iter().filter(|_| chance.one_in(2)).collect();
    let more = if chance.one_in(3) { scalar(chance) } else { json!(false) };
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": more })
}

fn scalar(chance: &mut Chance) -> Value {
    let formats = ["date-time", "time", "date", "email", "hostname", "ipv4", "ipv6", "uuid"];
    match chance.below(9) {
        0 => {
            let least = chance.below(200) as i64 - 100;
            json!({ "type": "integer", "minimum": least, "maximum": least + chance.below(1000) as i64 })
        }
        1 => json!({ "type": "number", "exclusiveMinimum": -1.5, "maximum": chance.below(100) }),
        2 => json!({ "type": "string", "minLength": chance.below(3), "maxLength": 3 + chance.below(10) }),
        3 => json!({ "type": "string", "pattern": "^[a-c]{1,4}(-[0-9]{2})?$" }),
        4 => json!({ "type": "string", "format": formats[chance.below(formats.len())] }),
        5 => json!({ "enum": ["red", "green\n", 3, null, [1, "two"], { "k": true }] }),
        6 => json!({ "const": ["constant", chance.below(10)] }),
        7 => json!({ "type": ["boolean", "null"] }),
        _ => json!({ "type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99 }),
    }
}

fn check(seeds: impl Iterator<Item = u64>) {
    let tokenizer = tokenizer();
    let (mut whole, mut cut, mut refused) = (0, 0, 0);
    for seed in seeds {
        let schema = schema(seed);
        let said = match say(&tokenizer, Grammar::json_schema(schema.clone()), 1500, seed) {
            Ok(said) => said,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::InvalidInput), "{schema}: {error}");
                refused += 1;
                continue;
            }
        };
        if said.finish_reason != FinishReason::Stop {
            cut += 1;
            continue;
        }
        let value: Value = serde_json::from_str(&said.text).unwrap();
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        let errors: Vec<_> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "seed {seed}: {schema}\n{}\n{errors:?}", said.text);
        whole += 1;
    }
    println!("{whole} whole, {cut} cut, {refused} refused");
    // What is refused or cut says nothing.
    assert!(refused * 50 <= whole && cut * 20 <= whole, "{whole} whole, {cut} cut, {refused} refused");
}

#[test]
fn output_under_a_schema_is_valid() {
    check(0..60);
}

#[test]
#[ignore = "a thousand schemas take a minute"]
fn output_under_a_thousand_schemas_is_valid() {
    check(1000..2000);
}
