//! Closes the objects of a schema: no fields but those that it names.

use std::collections::{HashMap, HashSet};
use std::ptr;

use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Which objects are closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All, as a type means them.
    #[cfg(feature = "schemars")]
    Types,
    /// Those that name fields, and are not combined with others.
    Fields,
}

/// How deep references are followed, and the most alternatives that an object is written out as.
const DEEPEST: usize = 16;
const MOST_ALTERNATIVES: usize = 64;
/// How many parts and fields of combined objects are compared; a schema with more stays open.
const MOST_COMPARED: usize = 1 << 18;

/// Keywords that combine a schema with others that apply to the same value.
const COMBINING: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
/// Keywords that say nothing of a value.
const SAYS_NOTHING: [&str; 7] =
    ["title", "description", "default", "examples", "$schema", "$defs", "definitions"];
/// Keywords that say which further fields an object may have.
const FURTHER: [&str; 3] = ["additionalProperties", "unevaluatedProperties", "patternProperties"];

/// Sets `additionalProperties` to false for every object that does not say which further fields it may have,
/// wherever it is nested.
///
/// An object that is combined with others, as of a flattened or an internally tagged enum, is written out as
/// its alternatives first, because `additionalProperties` does not see the fields of the others. If that is
/// not possible, the object stays open.
#[cfg(feature = "schemars")]
pub(super) fn close(schema: Value) -> Value {
    close_which(schema, Which::Types)
}

/// Sets `additionalProperties` to false for every object that names fields and does not say which others it
/// may have. An object that names none, or requires others, or is combined with others, stays open: written by
/// hand, it may mean that.
pub(crate) fn close_fields(schema: Value) -> Value {
    close_which(schema, Which::Fields)
}

fn close_which(mut schema: Value, which: Which) -> Value {
    let root = schema.clone();
    let mut opening = Opening { root: &root, open: HashSet::new(), left: MOST_COMPARED };
    if opening.open_targets(which).is_some() {
        Closing { root: &root, which, open: opening.open }.close_at(&mut schema, Some(&root), true);
    }
    schema
}

/// Finds the objects that stay open.
struct Opening<'s> {
    root: &'s Value,
    open: HashSet<*const Value>,
    /// How many parts and fields may still be compared.
    left: usize,
}

impl<'s> Opening<'s> {
    /// Opens the targets of references that are combined with others, and fields that several parts of a combined
    /// object name; `None` if that takes too long.
    fn open_targets(&mut self, which: Which) -> Option<()> {
        let (mut combined, mut values) = (Vec::new(), vec![self.root]);
        while let Some(value) = values.pop() {
            match value {
                Value::Array(list) => values.extend(list),
                Value::Object(object) => {
                    values.extend(object.values());
                    let is_written_out = which.writes_out(object) && written_out(object, self.root).is_some();
                    if !is_alone(object) && !is_written_out {
                        self.open_shared_fields(vec![value], DEEPEST)?;
                        combined.push(object);
                    }
                }
                _ => {}
            }
        }
        while let Some(object) = combined.pop() {
            for keyword in COMBINING {
                match object.get(keyword) {
                    Some(Value::Array(parts)) => combined.extend(parts.iter().filter_map(Value::as_object)),
                    Some(Value::String(target)) => {
                        let target =
                            self.target(target).filter(|target| self.open.insert(ptr::from_ref(target)));
                        combined.extend(target.and_then(Value::as_object));
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }

    /// Opens the objects `parts`, all of which apply to one value, and the fields that several of them name: one
    /// that was closed would refuse what the others name in it.
    fn open_shared_fields(&mut self, mut parts: Vec<&'s Value>, depth: usize) -> Option<()> {
        let is_open = parts.iter().all(|part| self.open.contains(&ptr::from_ref(*part)));
        let Some(depth) = depth.checked_sub(1).filter(|_| !is_open) else { return Some(()) };
        let mut fields: HashMap<&str, Vec<&Value>> = HashMap::new();
        let mut seen = Vec::new();
        while let Some(part) = parts.pop().filter(|_| seen.len() < MOST_ALTERNATIVES) {
            let Some(object) = part.as_object().filter(|_| !seen.contains(&ptr::from_ref(part))) else {
                continue;
            };
            parts.extend(object.get("$ref").and_then(Value::as_str).and_then(|target| self.target(target)));
            let all = object.get("allOf").and_then(Value::as_array);
            let properties = object.get("properties").and_then(Value::as_object);
            self.left = self.left.checked_sub(all.map_or(0, Vec::len) + properties.map_or(0, Map::len))?;
            parts.extend(all.into_iter().flatten());
            for (name, field) in properties.into_iter().flatten() {
                fields.entry(name).or_default().push(field);
            }
            seen.push(ptr::from_ref(part));
        }
        self.open.extend(seen);
        fields
            .into_values()
            .filter(|shared| shared.len() > 1)
            .try_for_each(|shared| self.open_shared_fields(shared, depth))
    }

    /// What a reference refers to.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        self.root.pointer(reference.strip_prefix('#').unwrap_or(reference))
    }
}

fn has_any(object: &Object, keywords: &[&str]) -> bool {
    keywords.iter().any(|keyword| object.contains_key(*keyword))
}

/// Whether no more than one schema applies to a value of `object`, apart from its type.
fn is_alone(object: &Object) -> bool {
    let mut combining = object.iter().filter(|(keyword, _)| COMBINING.contains(&keyword.as_str()));
    let Some((keyword, value)) = combining.next() else { return true };
    let is_one = keyword != "allOf" || value.as_array().is_some_and(|parts| parts.len() == 1);
    let says = |keyword: &String| keyword != "type" && !SAYS_NOTHING.contains(&keyword.as_str());
    is_one && object.keys().filter(|keyword| says(keyword)).count() == 1
}

/// Closes the objects of a schema.
struct Closing<'s> {
    /// The schema as it was.
    root: &'s Value,
    which: Which,
    open: HashSet<*const Value>,
}

impl Closing<'_> {
    /// Closes what is nested in `schema`, which `was` this before, and itself if it `may` be closed.
    fn close_at(&self, schema: &mut Value, was: Option<&Value>, may: bool) {
        let Value::Object(object) = schema else { return };
        let may = may && was.is_none_or(|was| !self.open.contains(&ptr::from_ref(was)));
        let is_combined = has_any(object, &COMBINING);
        let may_below =
            may && (self.which.writes_out(object) && write_out(object, self.root) || is_alone(object));
        if may && !is_combined && self.which.holds(object) && names_all(object) {
            object.insert("additionalProperties".to_owned(), false.into());
        }
        for (keyword, value) in object {
            let was = was.and_then(|was| was.get(keyword));
            match (keyword.as_str(), value) {
                ("properties" | "$defs" | "definitions" | "patternProperties", Value::Object(schemas)) => {
                    for (name, schema) in schemas {
                        self.close_at(schema, was.and_then(|was| was.get(name)), true);
                    }
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                    self.close_each(schemas, was, may_below);
                }
                ("prefixItems" | "items", Value::Array(schemas)) => self.close_each(schemas, was, true),
                ("items" | "additionalProperties" | "contains", schema) => self.close_at(schema, was, true),
                _ => {}
            }
        }
    }

    fn close_each(&self, schemas: &mut [Value], was: Option<&Value>, may: bool) {
        for (number, schema) in schemas.iter_mut().enumerate() {
            self.close_at(schema, was.and_then(|was| was.get(number)), may);
        }
    }
}

/// Whether an object has no fields but those that it names.
fn names_all(object: &Object) -> bool {
    let is_named = |name: &Value| {
        name.as_str()
            .is_some_and(|name| object.get("properties").is_some_and(|known| known.get(name).is_some()))
    };
    let required = object.get("required").and_then(Value::as_array);
    !has_any(object, &FURTHER) && required.is_none_or(|required| required.iter().all(is_named))
}

impl Which {
    /// Whether a schema is that of an object to close.
    fn holds(self, schema: &Object) -> bool {
        let is_object = schema.get("type").is_some_and(|kind| match kind {
            Value::Array(types) => types.iter().any(|kind| kind == "object"),
            kind => kind == "object",
        });
        self != Self::Fields && is_object || schema.contains_key("properties")
    }

    /// Whether an object that is combined with others is to be written out.
    fn writes_out(self, schema: &Object) -> bool {
        self != Self::Fields && has_any(schema, &COMBINING) && self.holds(schema)
    }
}

/// Replaces an object that is combined with others by its alternatives; false if it has no such form, or is
/// open.
fn write_out(object: &mut Object, root: &Value) -> bool {
    let Some(mut written) = written_out(object, root) else { return false };
    for alternative in &mut written {
        alternative.insert("additionalProperties".to_owned(), false.into());
    }
    let kept: Object = ["$schema", "$defs", "definitions", "title", "description"]
        .iter()
        .filter_map(|keyword| object.remove_entry(*keyword))
        .collect();
    *object = kept;
    match <[Object; 1]>::try_from(written) {
        Ok([only]) => object.extend(only),
        Err(written) => {
            object.insert("anyOf".to_owned(), written.into_iter().map(Value::Object).collect());
        }
    }
    true
}

/// The alternatives of an object that is combined with others; `None` if it has no such form, or is open.
fn written_out(object: &Object, root: &Value) -> Option<Vec<Object>> {
    if FURTHER.iter().any(|keyword| object.get(*keyword).is_some_and(|value| *value != false)) {
        return None;
    }
    alternatives(object, root, DEEPEST)
}

/// The objects without combining keywords that `schema` is one of; `None` if it is not one of some.
fn alternatives(schema: &Object, root: &Value, depth: usize) -> Option<Vec<Object>> {
    let depth = depth.checked_sub(1)?;
    let of = |schema: &Value| alternatives(schema.as_object()?, root, depth);
    let mut own = Object::new();
    let mut sources: Vec<Vec<Object>> = Vec::new();
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("type", kind) if kind == "object" => {}
            ("properties" | "required", _) => {
                own.insert(keyword.clone(), value.clone());
            }
            (keyword, _) if SAYS_NOTHING.contains(&keyword) => {}
            ("additionalProperties" | "unevaluatedProperties", Value::Bool(false)) => {}
            ("$ref", Value::String(target)) => sources.push(of(root.pointer(target.strip_prefix('#')?)?)?),
            ("allOf", Value::Array(parts)) => {
                for part in parts {
                    sources.push(of(part)?);
                }
            }
            ("anyOf" | "oneOf", Value::Array(parts)) => {
                sources.push(parts.iter().map(of).collect::<Option<Vec<_>>>()?.concat());
            }
            _ => return None,
        }
    }
    own.insert("type".to_owned(), "object".into());
    let mut written = vec![own];
    for source in sources {
        if written.len() * source.len() > MOST_ALTERNATIVES {
            return None;
        }
        let both = written.iter().flat_map(|one| source.iter().map(move |other| merged(one, other)));
        written = both.collect::<Option<_>>()?;
    }
    Some(written)
}

/// The object with the fields of both; `None` if a field of both has two schemas.
fn merged(one: &Object, other: &Object) -> Option<Object> {
    let mut merged = one.clone();
    if let Some(Value::Object(more)) = other.get("properties") {
        let properties =
            merged.entry("properties").or_insert_with(|| Object::new().into()).as_object_mut()?;
        for (name, schema) in more {
            if properties.get(name).is_some_and(|known| known != schema) {
                return None;
            }
            properties.insert(name.clone(), schema.clone());
        }
    }
    if let Some(Value::Array(more)) = other.get("required") {
        let required =
            merged.entry("required").or_insert_with(|| Vec::<Value>::new().into()).as_array_mut()?;
        for name in more {
            if !required.contains(name) {
                required.push(name.clone());
            }
        }
    }
    Some(merged)
}

#[cfg(all(test, feature = "schemars"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_closed_wherever_they_are_nested() {
        let open = json!({
            "type": "object",
            "properties": {
                "list": { "type": "array", "items": { "type": "object", "properties": { "a": true } } },
                "maybe": { "anyOf": [{ "$ref": "#/$defs/part" }, { "type": "null" }] },
                "map": { "type": "object", "additionalProperties": { "type": "object", "properties": {} } },
                "any": true,
                "text": { "type": "string", "default": { "type": "object" } }
            },
            "$defs": { "part": { "type": ["object", "null"], "properties": { "b": { "type": "integer" } } } }
        });
        let closed = close(open);
        for (pointer, expected) in [
            ("", Some(json!(false))),
            ("/properties/list/items", Some(json!(false))),
            ("/$defs/part", Some(json!(false))),
            ("/properties/map/additionalProperties", Some(json!(false))),
            ("/properties/text/default", None),
        ] {
            assert_eq!(
                closed.pointer(pointer).unwrap().get("additionalProperties"),
                expected.as_ref(),
                "{pointer}"
            );
        }
        assert!(closed.pointer("/properties/map/additionalProperties/properties").is_some());
        assert_eq!(close(closed.clone()), closed);
    }

    #[test]
    fn an_object_beside_alternatives_is_written_out_and_closed() {
        let schema = json!({
            "type": "object",
            "properties": { "id": { "type": "integer" } },
            "required": ["id"],
            "oneOf": [
                { "type": "object", "properties": { "kind": { "const": "a" }, "x": true }, "required": ["kind"] },
                { "$ref": "#/$defs/b" }
            ],
            "$defs": { "b": { "type": "object", "properties": { "kind": { "const": "b" } }, "required": ["kind"] } }
        });
        let closed = close(schema);
        let validator = jsonschema::validator_for(&closed).unwrap();
        for valid in [json!({ "id": 1, "kind": "a", "x": 2 }), json!({ "id": 1, "kind": "b" })] {
            assert!(validator.is_valid(&valid), "{valid}");
        }
        for invalid in [
            json!({ "id": 1, "kind": "b", "x": 2 }),
            json!({ "id": 1, "kind": "a", "more": 2 }),
            json!({ "kind": "a" }),
        ] {
            assert!(!validator.is_valid(&invalid), "{invalid}");
        }
    }

    #[test]
    fn an_object_that_cannot_be_written_out_stays_as_it_is() {
        let schema = json!({
            "type": "object",
            "properties": { "a": { "type": "integer" } },
            "allOf": [{ "type": "object", "properties": { "a": { "minimum": 3 } } }]
        });
        assert_eq!(close(schema.clone()), schema);
    }

    #[test]
    fn of_a_schema_by_hand_only_objects_that_name_fields_are_closed() {
        let open = json!({
            "type": "object",
            "properties": {
                "any": { "type": "object" },
                "open": { "properties": {}, "additionalProperties": true },
                "list": { "items": { "properties": { "a": true } } },
                "either": { "anyOf": [{ "properties": { "b": { "properties": {} } } }] }
            }
        });
        let mut closed = open.clone();
        for pointer in ["", "/properties/list/items", "/properties/either/anyOf/0"] {
            closed.pointer_mut(pointer).unwrap()["additionalProperties"] = false.into();
        }
        closed["properties"]["either"]["anyOf"][0]["properties"]["b"]["additionalProperties"] = false.into();
        assert_eq!(close_fields(open), closed);

        let combined = json!({ "properties": { "a": true }, "anyOf": [{ "properties": { "b": true } }] });
        assert_eq!(close_fields(combined.clone()), combined);
        let requires = json!({ "properties": { "a": true }, "required": ["a", "b"] });
        assert_eq!(close_fields(requires.clone()), requires);
    }

    #[test]
    fn of_a_schema_by_hand_combined_objects_stay_open() {
        let (a, b) = (json!({ "properties": { "a": true } }), json!({ "properties": { "b": true } }));
        for combined in [
            json!({ "allOf": [a, b] }),
            json!({ "required": ["b"], "anyOf": [a, b] }),
            json!({ "allOf": [{ "anyOf": [a] }, b] }),
            json!({ "allOf": [{ "$ref": "#/$defs/a" }, b], "$defs": { "a": a } }),
            json!({ "$ref": "#/$defs/a", "properties": { "b": true }, "$defs": { "a": a } }),
            json!({ "$ref": "#/$defs/a", "allOf": [b], "$defs": { "a": { "$ref": "#/$defs/c~1d" }, "c/d": a } }),
            json!({ "properties": { "x": { "allOf": [{ "$ref": "#/$defs/a" }, b] } }, "additionalProperties": true, "$defs": { "a": a } }),
        ] {
            assert_eq!(close_fields(combined.clone()), combined);
        }
        let part = |field: &str| json!({ "properties": { "at": { "properties": { field: { "properties": { "c": true } } } } } });
        let combined = json!({ "allOf": [part("a"), part("b")] });
        let mut closed = combined.clone();
        for (number, field) in ["a", "b"].iter().enumerate() {
            closed["allOf"][number]["properties"]["at"]["properties"][field]["additionalProperties"] =
                false.into();
        }
        assert_eq!(close_fields(combined), closed);
        let schema = json!({
            "type": "object", "description": "one schema applies", "allOf": [{ "$ref": "#/$defs/a" }],
            "$defs": { "a": a, "b": { "allOf": [{ "properties": { "c": b } }, {}] } }
        });
        let mut closed = schema.clone();
        for pointer in ["/$defs/a", "/$defs/b/allOf/0/properties/c"] {
            closed.pointer_mut(pointer).unwrap()["additionalProperties"] = false.into();
        }
        assert_eq!(close_fields(schema), closed);
    }
}
