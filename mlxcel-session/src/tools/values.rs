//! The values of arguments that a call has one by one, of the types of the tool's schema.

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
    let is_last = |at: usize| fields[at + 1..].iter().all(|(name, _)| *name != fields[at].0);
    let fields = fields.iter().enumerate().filter(|&(at, _)| is_last(at)).map(|(_, (name, written))| {
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
fn json(text: &str, types: &[&str]) -> String {
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
        Value::Number(number) => types.contains(&"number") || number.is_i64() && types.contains(&"integer"),
        Value::String(_) => false,
        Value::Array(_) => types.contains(&"array"),
        Value::Object(_) => types.contains(&"object"),
    };
    if is_type || !types.contains(&"string") { trimmed.to_owned() } else { string() }
}

/// The types of values of a schema that is a part of `root`; a string if it names none.
pub(super) fn types<'s>(schema: &'s Value, root: &'s Value) -> Vec<&'s str> {
    let (mut types, mut parts) = (Vec::new(), MOST_PARTS);
    add_types(schema, root, &mut parts, &mut types);
    if types.is_empty() { vec!["string"] } else { types }
}

fn add_types<'s>(schema: &'s Value, root: &'s Value, parts: &mut usize, types: &mut Vec<&'s str>) {
    if *parts == 0 {
        return;
    }
    *parts -= 1;
    let list = |field: &'static str| -> &'s [Value] { schema[field].as_array().map_or(&[], Vec::as_slice) };
    types.extend(schema["type"].as_str());
    types.extend(list("type").iter().filter_map(Value::as_str));
    types.extend(list("enum").iter().chain(schema.get("const")).map(|value| type_of(value)));
    for choice in ["anyOf", "oneOf", "allOf"].into_iter().flat_map(list) {
        add_types(choice, root, parts, types);
    }
    let target = schema["$ref"].as_str().and_then(|target| root.pointer(target.strip_prefix('#')?));
    if let Some(target) = target {
        add_types(target, root, parts, types);
    }
    if types.is_empty() {
        types.extend(schema["properties"].is_object().then_some("object"));
        types.extend(schema["items"].is_object().then_some("array"));
    }
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
