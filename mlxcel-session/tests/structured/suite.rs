//! The public test suite of JSON Schema (draft 2020-12, as the Python package jsonschema 4.23.0 carries it),
//! but for schemas elsewhere.

use mlxcel_session::{FinishReason, Grammar};
use serde::Deserialize;
use serde_json::Value;

use crate::structured::harness::{hot, random_model, say, tokenizer};

#[derive(Deserialize)]
struct Group {
    name: String,
    schema: Value,
    tests: Vec<(Value, bool)>,
}

fn suite() -> Vec<Group> {
    serde_json::from_str(include_str!("../fixtures/json_schema_test_suite.json")).unwrap()
}

#[test]
fn output_under_the_test_suites_schemas_is_valid() {
    let tokenizer = tokenizer();
    let (mut whole, mut refused) = (0, 0);
    for (number, group) in suite().into_iter().enumerate() {
        for seed in [number as u64, 1000 + number as u64] {
            let Ok(said) = say(&tokenizer, Grammar::json_schema(group.schema.clone()), 200, seed) else {
                refused += 1;
                break;
            };
            if said.finish_reason != FinishReason::Stop {
                continue;
            }
            let value: Value = match serde_json::from_str(&said.text) {
                Ok(value) => value,
                // JSON bounds no number.
                Err(fault) if fault.to_string().contains("out of range") => continue,
                Err(fault) => panic!("{}: {fault}: {}", group.name, said.text),
            };
            let Ok(validator) = jsonschema::draft202012::new(&group.schema) else { continue };
            assert!(validator.is_valid(&value), "{}: {}\n{}", group.name, group.schema, said.text);
            whole += 1;
        }
    }
    assert!(whole > 100, "{whole} texts, {refused} refused");
}

/// The instances that the suite calls invalid are none that a schema's grammar admits.
#[test]
fn no_invalid_instance_is_admitted() {
    let tokenizer = tokenizer();
    let model = random_model(&tokenizer, 0);
    let (mut right, mut missed) = (0, 0);
    for group in suite() {
        let options = hot(1, 0).with_grammar(Grammar::json_schema(group.schema.clone()));
        for (instance, valid) in group.tests {
            let Ok(mut constraint) = options.constraint.as_ref().unwrap().start(&model) else { break };
            let text = written(&instance);
            let tokens = tokenizer.encode(&text, false).unwrap();
            let admitted = tokens.iter().all(|&token| {
                constraint.mask().is_ok_and(|mask| mask.allows(token)) && constraint.accept(token).is_ok()
            }) && (constraint.is_complete() || may_end(&mut *constraint, &model));
            assert!(valid || !admitted, "{}: {}\n{text}", group.name, group.schema);
            if valid && admitted { right += 1 } else { missed += usize::from(valid) }
        }
    }
    // Fields in another order than the schema's are not written, though valid.
    assert!(right > missed, "{right} valid instances are admitted, {missed} are not");
}

fn may_end(constraint: &mut dyn mlxcel_session::Constraint, model: &mlxcel_session::Model) -> bool {
    constraint.mask().is_ok_and(|mask| model.stop_tokens().iter().any(|&stop| mask.allows(stop)))
}

/// As grammars write JSON.
fn written(value: &Value) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(values) => format!("[{}]", list(values.iter().map(written).collect())),
        Value::Object(map) => {
            let field =
                |(name, value): (&String, &Value)| format!("{}: {}", Value::from(&**name), written(value));
            format!("{{{}}}", list(map.iter().map(field).collect()))
        }
        other => other.to_string(),
    }
}
