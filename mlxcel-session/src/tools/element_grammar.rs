//! The grammar of arguments as elements that nest, by a JSON schema.

use serde_json::Value;

use super::Tools;
use super::grammar::{Rules, times};
use super::values::{self, choices, requires, types};
use crate::chat::style::ITEM;

impl Tools {
    /// Elements behind `mark` of the fields of an object of the schema `root`.
    pub(super) fn elements(&self, mark: &str, root: &Value, rules: &mut Rules) -> String {
        let mut writer = Writer { tools: self, mark, root, rules, open: Vec::new() };
        let fields = writer.fields(root);
        // One after the other: a chain of references may be long.
        while let Some((rule, schema, close)) = writer.open.pop() {
            let value = writer.value(schema, &close);
            writer.rules.define(&rule, &value);
        }
        fields
    }
}

/// Writes elements of parts of the schema `root`.
struct Writer<'w> {
    tools: &'w Tools,
    mark: &'w str,
    root: &'w Value,
    rules: &'w mut Rules,
    /// Rules of targets of references that are to be defined, with their schemas and the tags behind their values.
    open: Vec<(String, &'w Value, String)>,
}

impl<'w> Writer<'w> {
    /// The fields that the schema names, in order.
    fn fields(&mut self, schema: &'w Value) -> String {
        let fields = schema["properties"].as_object().into_iter().flatten().map(|(name, field)| {
            let element = self.element(name, field);
            format!("({element}){}", if requires(schema, name) { "" } else { "?" })
        });
        fields.collect::<Vec<_>>().join(" ")
    }

    /// An element with a value of the schema.
    fn element(&mut self, name: &str, schema: &'w Value) -> String {
        let open = self.tools.literal(&format!("{}<{name}>", self.mark));
        let value = self.value(schema, &format!("{}</{name}>", self.mark));
        self.rules.add(&format!("{open} {value}"))
    }

    /// A value of the schema, and the tag behind it. Objects and lists of which the schema does not say what
    /// they have are JSON.
    fn value(&mut self, schema: &'w Value, close: &str) -> String {
        if let Some(target) = schema["$ref"].as_str() {
            return self.reference(target, close);
        }
        let types = types(schema, self.root);
        if types.contains(&"string") {
            return self.tools.string_between(schema, ("", close), self.rules);
        }
        if let Some(choices) = choices(schema) {
            let choices: Vec<_> = choices.iter().map(|choice| self.value(choice, close)).collect();
            return format!("({})", choices.join(" | "));
        }
        let end = self.tools.literal(close);
        if types == ["object"] && schema["properties"].as_object().is_some_and(|fields| !fields.is_empty()) {
            return format!("{} {end}", self.fields(schema));
        }
        if types == ["array"] && schema["items"].is_object() {
            let item = self.element(ITEM, &schema["items"]);
            let least = schema["minItems"].as_u64().unwrap_or(0);
            return format!("{item}{} {end}", times(least, schema["maxItems"].as_u64()));
        }
        self.tools.json_between(schema, self.root, ("", close), self.rules)
    }

    /// A value of what a reference refers to, or of any kind, and the tag behind it.
    fn reference(&mut self, target: &'w str, close: &str) -> String {
        let Some(schema) = values::target(self.root, target) else {
            return self.tools.json_between(&Value::from(true), self.root, ("", close), self.rules);
        };
        let (rule, is_new) = self.rules.target(&format!("{target} {close}"));
        if is_new {
            self.open.push((rule.clone(), schema, close.to_owned()));
        }
        rule
    }
}
