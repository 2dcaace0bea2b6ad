//! Arguments as elements that nest: where each ends, and what they are in JSON.

use std::collections::HashMap;

use serde_json::Value;

use super::attempt::DEEPEST;
use super::values::{json, parts, types};
use crate::chat::style::ITEM;

/// What is between the tags of an element.
#[derive(Clone, Debug)]
pub(super) enum Element {
    Text(String),
    Elements(Vec<(String, Element)>),
}

/// An element of which the end is looked for.
#[derive(Default)]
struct Open<'t> {
    name: &'t str,
    text: String,
    elements: Vec<(String, Element)>,
}

/// The elements of `text`, each between `<NAME>` and `</NAME>` behind `mark`, with space between them; `None`
/// if it is not such a text.
pub(super) fn elements(text: &str, mark: &str) -> Option<Vec<(String, Element)>> {
    let mut pieces = text.split(mark);
    let mut open = vec![Open { text: pieces.next()?.to_owned(), ..Open::default() }];
    for piece in pieces {
        let (tag, text) = piece.strip_prefix('<')?.split_once('>')?;
        let Some(name) = tag.strip_prefix('/') else {
            if open.len() > DEEPEST {
                return None;
            }
            open.push(Open { name: tag, text: text.to_owned(), elements: Vec::new() });
            continue;
        };
        let ended = open.pop().filter(|ended| ended.name == name)?;
        let outer = open.last_mut()?;
        let element = match ended.elements.is_empty() {
            true => Element::Text(ended.text),
            false if ended.text.trim().is_empty() => Element::Elements(ended.elements),
            false => return None,
        };
        outer.elements.push((name.to_owned(), element));
        outer.text.push_str(text);
    }
    let whole = open.pop().filter(|whole| open.is_empty() && whole.text.trim().is_empty())?;
    Some(whole.elements)
}

/// The JSON object that elements are by `schema`, a part of the schema `root`. Those of one name are a list, as
/// vLLM reads them.
pub(super) fn object(elements: &[(String, Element)], schema: &Value, root: &Value) -> String {
    let schemas = parts(schema, root);
    let mut places = HashMap::new();
    let mut fields: Vec<(&str, Vec<String>)> = Vec::new();
    for (name, element) in elements {
        let known = schemas.iter().find_map(|schema| schema["properties"].get(name));
        let further = || schemas.iter().find_map(|schema| schema.get("additionalProperties"));
        let value = value(element, known.or_else(further).unwrap_or(&Value::Null), root);
        let place = *places.entry(name).or_insert_with(|| {
            fields.push((name, Vec::new()));
            fields.len() - 1
        });
        fields[place].1.push(value);
    }
    let fields = fields.into_iter().map(|(name, values)| {
        let value = if values.len() == 1 { values.concat() } else { format!("[{}]", values.join(", ")) };
        format!("{}: {value}", Value::from(name))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

fn value(element: &Element, schema: &Value, root: &Value) -> String {
    let types = types(schema, root);
    let is = |kind: &str| types.contains(&kind);
    match element {
        // Templates print no items and no fields so.
        Element::Text(text) if text.trim().is_empty() && !is("string") && is("array") => "[]".to_owned(),
        Element::Text(text) if text.trim().is_empty() && !is("string") && is("object") => "{}".to_owned(),
        Element::Text(text) => json(text, &types),
        Element::Elements(elements) => {
            let are_items = elements.iter().all(|(name, _)| name == ITEM);
            let is_list = if is("object") { is("array") && are_items } else { is("array") || are_items };
            if !is_list {
                return object(elements, schema, root);
            }
            let schemas = parts(schema, root);
            let items = schemas.iter().find_map(|schema| schema.get("items")).unwrap_or(&Value::Null);
            let items: Vec<_> = elements.iter().map(|(_, element)| value(element, items, root)).collect();
            format!("[{}]", items.join(", "))
        }
    }
}
