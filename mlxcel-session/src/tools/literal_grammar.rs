//! The grammar of keyword arguments: literals by a JSON schema.

use serde_json::{Map, Value, json};

use super::Tools;
use super::grammar::{Rules, times};
use super::values::{self, choices, list, requires};
use crate::chat::style::Literals;
use crate::structured::compact;

/// Keywords of a schema that say which strings and which numbers are meant.
const OF_STRINGS: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// What any value is known by among the targets of references.
const ANY: &str = "any";

impl Tools {
    /// Keyword arguments by the schema `root`, without the brackets around them.
    pub(super) fn keywords(
        &self,
        assign: &str,
        literals: Literals,
        root: &Value,
        rules: &mut Rules,
    ) -> String {
        let mut writer = Writer { tools: self, literals, root, rules, open: Vec::new() };
        let fields = writer.fields(root, Some(assign));
        // One after the other: a chain of references may be long.
        while let Some((rule, schema)) = writer.open.pop() {
            let value = writer.value(schema);
            writer.rules.define(&rule, &value);
        }
        fields
    }
}

/// Writes values of parts of the schema `root`.
struct Writer<'w> {
    tools: &'w Tools,
    literals: Literals,
    root: &'w Value,
    rules: &'w mut Rules,
    /// Rules of targets of references that are to be defined, with their schemas.
    open: Vec<(String, &'w Value)>,
}

impl<'w> Writer<'w> {
    /// The fields of an object, in order. Keywords have `assign` behind their bare names.
    fn fields(&mut self, schema: &'w Value, assign: Option<&str>) -> String {
        let comma = self.comma();
        let mut known: Vec<_> = schema["properties"].as_object().into_iter().flatten().collect();
        if self.literals != Literals::Python {
            known.sort_by_key(|(name, _)| name.to_lowercase());
        }
        let further = &schema["additionalProperties"];
        let mut others = String::new();
        if further != false {
            let name = match (assign, self.literals) {
                (Some(assign), _) => format!("/[A-Za-z0-9_]{{1,64}}/ {}", self.tools.literal(assign)),
                (None, Literals::Marked(_)) => "/[A-Za-z0-9_.$-]{1,64}/ \":\"".to_owned(),
                (None, Literals::Python) => format!("{} \": \"", self.string(&json!({}))),
            };
            let value = self.value(further);
            others = self.rules.add(&format!("{name} {value}"));
        }
        let fields: Vec<(String, bool)> = known
            .into_iter()
            .map(|(name, field)| {
                let name_and_colon = match (assign, self.literals) {
                    (Some(assign), _) => self.tools.literal(&format!("{name}{assign}")),
                    (None, Literals::Marked(_)) => self.tools.literal(&format!("{name}:")),
                    (None, Literals::Python) => {
                        format!("({}) \": \"", self.written(&Value::from(name.as_str())))
                    }
                };
                let value = self.value(field);
                (self.rules.add(&format!("{name_and_colon} {value}")), requires(schema, name))
            })
            .collect();
        // What may follow a field, from the last one on.
        let mut behind =
            vec![if others.is_empty() { others.clone() } else { format!("({comma} {others})*") }];
        for (field, is_required) in fields.iter().rev() {
            let more = behind.last().map_or("", String::as_str);
            let rule = format!("({comma} {field}){} {more}", if *is_required { "" } else { "?" });
            behind.push(self.rules.add(&rule));
        }
        behind.pop();
        let mut firsts = Vec::new();
        for ((field, is_required), more) in fields.iter().zip(behind.iter().rev()) {
            firsts.push(format!("{field} {more}"));
            if *is_required {
                return format!("({})", firsts.join(" | "));
            }
        }
        if !others.is_empty() {
            firsts.push(format!("{others} ({comma} {others})*"));
        }
        if firsts.is_empty() { String::new() } else { format!("({})?", firsts.join(" | ")) }
    }

    /// A value of the schema.
    fn value(&mut self, schema: &'w Value) -> String {
        if let Some(target) = schema["$ref"].as_str() {
            return self.reference(target);
        }
        let values = list(schema, "enum");
        if !values.is_empty() {
            return self.either(values.iter().map(|value| self.written(value)));
        }
        if let Some(value) = schema.get("const") {
            return format!("({})", self.written(value));
        }
        if let Some(choices) = choices(schema) {
            let choices: Vec<_> = choices.iter().map(|choice| self.value(choice)).collect();
            return self.either(choices.into_iter());
        }
        if let [only] = list(schema, "allOf") {
            return self.value(only);
        }
        let types = match &schema["type"] {
            Value::String(kind) => vec![kind.as_str()],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ if schema["properties"].is_object() => vec!["object"],
            _ if schema["items"].is_object() => vec!["array"],
            _ => Vec::new(),
        };
        let values: Option<Vec<_>> = types.iter().map(|kind| self.of_type(kind, schema)).collect();
        match values.filter(|values| !values.is_empty()) {
            Some(values) => self.either(values.into_iter()),
            None => self.any(),
        }
    }

    /// A value of the type `kind`; `None` if there is no such type.
    fn of_type(&mut self, kind: &str, schema: &'w Value) -> Option<String> {
        let python = self.literals == Literals::Python;
        Some(match kind {
            "string" => self.string(schema),
            "integer" | "number" => format!("%json {}", compact(&part(kind, schema, &OF_NUMBERS))),
            "boolean" if python => "(\"True\" | \"False\" | \"true\" | \"false\")".to_owned(),
            "boolean" => "(\"true\" | \"false\")".to_owned(),
            "null" => "(\"None\" | \"null\")".to_owned(),
            "array" => self.array(schema),
            "object" => format!("\"{{\" {} \"}}\"", self.fields(schema, None)),
            _ => return None,
        })
    }

    fn array(&mut self, schema: &'w Value) -> String {
        let (item, comma) = (self.value(&schema["items"]), self.comma());
        let least = schema["minItems"].as_u64().unwrap_or(0);
        let more = match schema["maxItems"].as_u64() {
            Some(0) => return "\"[\" \"]\"".to_owned(),
            most => times(least.saturating_sub(1), most.map(|most| most - 1)),
        };
        let any = if least == 0 { "?" } else { "" };
        format!("\"[\" ({item} ({comma} {item}){more}){any} \"]\"")
    }

    fn string(&mut self, schema: &Value) -> String {
        match self.literals {
            Literals::Marked(mark) => {
                let text = self.tools.string_between(schema, ("", mark), self.rules);
                format!("{} {text}", self.tools.literal(mark))
            }
            Literals::Python => {
                let part = part("string", schema, &OF_STRINGS);
                let is_free = part.as_object().is_some_and(|part| part.len() == 1);
                let single = if is_free { "| /'(?s:[^'\\\\]|\\\\.)*'/" } else { "" };
                self.rules.add(&format!("%json {} {single}", compact(&part)))
            }
        }
    }

    /// What a reference refers to, or any value.
    fn reference(&mut self, target: &'w str) -> String {
        let Some(schema) = values::target(self.root, target) else { return self.any() };
        let (rule, is_new) = self.rules.target(target);
        if is_new {
            self.open.push((rule.clone(), schema));
        }
        rule
    }

    /// Any value.
    fn any(&mut self) -> String {
        let (rule, is_new) = self.rules.target(ANY);
        if is_new {
            let kinds = ["string", "number", "boolean", "null", "array", "object"];
            let values: Vec<_> = kinds.iter().filter_map(|kind| self.of_type(kind, &Value::Null)).collect();
            self.rules.define(&rule, &values.join(" | "));
        }
        rule
    }

    fn either(&self, values: impl Iterator<Item = String>) -> String {
        format!("({})", values.collect::<Vec<_>>().join(" | "))
    }

    fn comma(&self) -> &'static str {
        if self.literals == Literals::Python { "\", \"" } else { "\",\"" }
    }

    /// This value; a string in either of Python's quotes.
    fn written(&self, value: &Value) -> String {
        let text = self.literal(value);
        let single = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match single.filter(|text| self.literals == Literals::Python && !text.contains(['\'', '\\'])) {
            Some(single) => {
                format!("{} | {}", Value::from(text.as_str()), Value::from(format!("'{single}'")))
            }
            None => self.tools.literal(&text),
        }
    }

    /// This value as a literal.
    fn literal(&self, value: &Value) -> String {
        let python = self.literals == Literals::Python;
        let (comma, colon) = if python { (", ", ": ") } else { (",", ":") };
        match (value, self.literals) {
            (Value::Null, Literals::Python) => "None".to_owned(),
            (Value::Bool(true), Literals::Python) => "True".to_owned(),
            (Value::Bool(false), Literals::Python) => "False".to_owned(),
            (Value::String(text), Literals::Marked(mark)) => format!("{mark}{text}{mark}"),
            (Value::Array(items), _) => {
                let items: Vec<_> = items.iter().map(|item| self.literal(item)).collect();
                format!("[{}]", items.join(comma))
            }
            (Value::Object(fields), _) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if !python {
                    fields.sort_by_key(|(name, _)| name.to_lowercase());
                }
                let field = |(name, value): (&String, &Value)| {
                    let name = if python { Value::from(name.as_str()).to_string() } else { name.clone() };
                    format!("{name}{colon}{}", self.literal(value))
                };
                let fields: Vec<_> = fields.into_iter().map(field).collect();
                format!("{{{}}}", fields.join(comma))
            }
            (other, _) => other.to_string(),
        }
    }
}

/// The schema of a value of the type `kind`, with those of `keywords` that `schema` has.
fn part(kind: &str, schema: &Value, keywords: &[&str]) -> Value {
    let mut part = Map::from_iter([("type".to_owned(), kind.into())]);
    for keyword in keywords {
        part.extend(schema.get(*keyword).map(|value| ((*keyword).to_owned(), value.clone())));
    }
    part.into()
}
