//! The values of arguments that a call has one by one, of the types of the tool's schema.

use std::collections::HashMap;

use serde_json::Value;

/// How many references and parts of combined schemas are followed.
const MOST_PARTS: usize = 64;

/// How a call has a value.
#[derive(Clone, Debug)]
pub(super) enum Written {
    /// As plain text between tags.
    Text(String),
    /// As a literal, which is this one in JSON.
    Json(String),
}

/// The JSON object that arguments are by the schema `parameters`. Of two with one name, the last one counts.
pub(super) fn object(fields: &[(String, Written)], parameters: &Value) -> String {
    let last: HashMap<&str, usize> = fields.iter().zip(0..).map(|((name, _), at)| (&**name, at)).collect();
    let fields = fields.iter().zip(0..).filter(|((name, _), at)| last.get(&**name) == Some(at));
    let fields = fields.map(|((name, written), _)| {
        let named = parameters["properties"].get(name.as_str());
        let schema = named.unwrap_or(&parameters["additionalProperties"]);
        let types = types(schema, parameters);
        let value = match written {
            Written::Text(text) => json(text, &types),
            // Some models and templates write any value as a string.
            Written::Json(literal) => match serde_json::from_str::<String>(literal) {
                Ok(text) if !types.contains(&"string") => json(&text, &types),
                _ => literal.clone(),
            },
        };
        format!("{}: {value}", Value::from(name.as_str()))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

/// `text` as JSON of one of `types`, as vLLM reads it: a string only if it is nothing else.
pub(super) fn json(text: &str, types: &[&str]) -> String {
    let trimmed = match text.trim() {
        // Templates show the model values as Python writes them.
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    let string = || Value::from(text).to_string();
    let Ok(value) = serde_json::from_str::<Value>(trimmed) else { return string() };
    let is_type = match value {
        Value::Null => types.contains(&"null"),
        Value::Bool(_) => types.contains(&"boolean"),
        Value::Number(number) => types.contains(&"number") || !number.is_f64() && types.contains(&"integer"),
        Value::String(_) => false,
        Value::Array(_) => types.contains(&"array"),
        Value::Object(_) => types.contains(&"object"),
    };
    if is_type || !types.contains(&"string") { trimmed.to_owned() } else { string() }
}

/// The types of values of a schema that is a part of `root`; a string if it names none.
pub(super) fn types<'s>(schema: &'s Value, root: &'s Value) -> Vec<&'s str> {
    let mut types = Vec::new();
    for part in parts(schema, root) {
        let known = types.len();
        types.extend(part["type"].as_str());
        types.extend(list(part, "type").iter().filter_map(Value::as_str));
        types.extend(list(part, "enum").iter().chain(part.get("const")).map(|value| type_of(value)));
        if types.len() == known {
            types.extend(part["properties"].is_object().then_some("object"));
            types.extend(part["items"].is_object().then_some("array"));
        }
    }
    if types.is_empty() { vec!["string"] } else { types }
}

/// The schema, which is a part of `root`, and those that it combines and refers to.
pub(super) fn parts<'s>(schema: &'s Value, root: &'s Value) -> Vec<&'s Value> {
    let mut parts = vec![schema];
    let mut at = 0;
    while let Some(&part) = parts.get(at) {
        at += 1;
        let choices = ["anyOf", "oneOf", "allOf"].into_iter().flat_map(|field| list(part, field));
        let target = part["$ref"].as_str().and_then(|reference| target(root, reference));
        parts.extend(choices.chain(target).take(MOST_PARTS - parts.len().min(MOST_PARTS)));
    }
    parts
}

/// The list in a field of a schema; empty without one.
pub(super) fn list<'s>(schema: &'s Value, field: &str) -> &'s [Value] {
    schema[field].as_array().map_or(&[], Vec::as_slice)
}

/// The alternatives of a schema.
#[cfg(feature = "structured")]
pub(super) fn choices(schema: &Value) -> Option<&[Value]> {
    ["anyOf", "oneOf"].into_iter().map(|field| list(schema, field)).find(|choices| !choices.is_empty())
}

/// Whether a schema requires the field `name`.
#[cfg(feature = "structured")]
pub(super) fn requires(schema: &Value, name: &str) -> bool {
    list(schema, "required").iter().any(|one| one == name)
}

/// The part of the schema `root` that a reference names.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    root.pointer(reference.strip_prefix('#')?)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
