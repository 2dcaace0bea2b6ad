//! Makes JSON schemas narrower where llguidance's own expressions for formats are too wide, or its integers
//! too small.

use serde_json::{Value, json};

/// The longest address that SMTP carries, and the longest host name that the domain name system has (RFC
/// 5321, RFC 1035).
const LONGEST_ADDRESS: usize = 254;
const LONGEST_NAME: usize = 253;

/// Days that the calendar has: 29 February in leap years alone.
const DAYS: &str = "(?:[0-9]{4}-(?:0[13-9]|1[0-2])-[0-9]{2}|[0-9]{4}-02-(?:[01][0-9]|2[0-8])\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
/// Times without the leap second, which few days have (RFC 3339).
const TIMES: &str = "[0-9]{2}:[0-9]{2}:[0-5][0-9][.zZ+-].*";
/// Up to 64 characters before the sign, and labels of up to 63 behind it.
const ADDRESSES: &str = r"[^@]{1,64}@(?:\[.*|[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*)";

/// Fields whose value is a schema, a list of schemas, or schemas by name.
const OF_ONE: [&str; 12] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];
const OF_LIST: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];

/// The least integer that llguidance can negate. Schemas of 64-bit integers have one less as their minimum.
const LEAST: i64 = -i64::MAX;

/// Adds to each schema with a format what its standard demands beyond the expression that llguidance has for
/// it, and lifts the least integer to one that llguidance can count from. Texts of the result are texts of
/// `schema`.
pub(super) fn complete(schema: &mut Value) {
    // Depth was bounded before.
    let Some(map) = schema.as_object_mut() else { return };
    for field in OF_ONE {
        map.get_mut(field).into_iter().for_each(complete);
    }
    for field in OF_LIST {
        map.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten().for_each(complete);
    }
    for field in BY_NAME {
        map.get_mut(field)
            .and_then(Value::as_object_mut)
            .into_iter()
            .flatten()
            .for_each(|(_, part)| complete(part));
    }
    if map.get("type").is_some_and(|kind| kind == "integer") {
        for field in ["minimum", "exclusiveMinimum"] {
            if let Some(least) = map.get_mut(field).filter(|least| is_below(least)) {
                *least = LEAST.into();
            }
        }
    }
    if let Some(more) = map.get("format").and_then(Value::as_str).and_then(demands) {
        match map.get_mut("allOf").and_then(Value::as_array_mut) {
            Some(all) => all.push(more),
            None => drop(map.insert("allOf".to_owned(), json!([more]))),
        }
    }
}

fn is_below(least: &Value) -> bool {
    least.as_i64().is_none_or(|least| least < LEAST) && least.as_f64().is_some_and(|least| least < 0.0)
}

fn demands(format: &str) -> Option<Value> {
    Some(match format {
        "date" => json!({ "pattern": format!("^{DAYS}$") }),
        "date-time" => json!({ "pattern": format!("^{DAYS}[tT]{TIMES}$") }),
        "time" => json!({ "pattern": format!("^{TIMES}$") }),
        "email" => json!({ "pattern": format!("^{ADDRESSES}$"), "maxLength": LONGEST_ADDRESS }),
        "hostname" => json!({ "maxLength": LONGEST_NAME }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_bounds_below_the_minimum_i64_are_raised() {
        for (least, lifted) in [
            (json!(i64::MIN), json!(LEAST)),
            (json!(-1e300), json!(LEAST)),
            (json!(-7), json!(-7)),
            (json!(u64::MAX), json!(u64::MAX)),
        ] {
            let mut schema = json!({ "items": { "type": "integer", "minimum": least, "maximum": 5 } });
            complete(&mut schema);
            assert_eq!(schema["items"]["minimum"], lifted);
        }
    }

    #[test]
    fn formats_are_expanded_only_inside_schemas() {
        let mut schema = json!({
            "properties": { "format": { "type": "string" }, "at": { "format": "time" } },
            "items": [{ "format": "email", "allOf": [{ "minLength": 9 }] }],
            "const": { "format": "date" },
            "$defs": { "day": { "format": "date" } }
        });
        complete(&mut schema);
        assert_eq!(schema["properties"]["format"], json!({ "type": "string" }));
        assert_eq!(schema["const"], json!({ "format": "date" }));
        assert_eq!(schema["items"][0]["allOf"].as_array().map(Vec::len), Some(2));
        for completed in [&schema["properties"]["at"], &schema["$defs"]["day"]] {
            assert!(completed["allOf"][0]["pattern"].is_string(), "{completed}");
        }
    }
}
