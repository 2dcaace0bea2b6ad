//! The grammar of arguments as elements that nest, by a JSON schema.

use serde_json::Value;

use super::Tools;
use super::grammar::Rules;
use super::values::types;
use crate::chat::style::ITEM;

impl Tools {
    /// Elements behind `mark` of the fields of an object of the schema `root`.
    pub(super) fn elements(&self, mark: &str, root: &Value, rules: &mut Rules) -> String {
        Writer { tools: self, mark, root, rules }.fields(root)
    }
}

/// Writes elements of parts of the schema `root`.
struct Writer<'w> {
    tools: &'w Tools,
    mark: &'w str,
    root: &'w Value,
    rules: &'w mut Rules,
}

impl<'w> Writer<'w> {
    /// The fields that the schema names, in order.
    fn fields(&mut self, schema: &'w Value) -> String {
        let is_required = |name: &str| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name))
        };
        let fields = schema["properties"].as_object().into_iter().flatten().map(|(name, schema)| {
            let element = self.element(name, schema);
            format!("({element}){}", if is_required(name) { "" } else { "?" })
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
        let list = |field: &str| schema[field].as_array().filter(|list| !list.is_empty());
        if let Some(choices) = list("anyOf").or_else(|| list("oneOf")) {
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
            let most = schema["maxItems"].as_u64().map_or_else(String::new, |most| most.to_string());
            return format!("{item}{{{least},{most}}} {end}");
        }
        self.tools.json_between(schema, self.root, ("", close))
    }

    /// A value of what a reference refers to, or of any kind, and the tag behind it.
    fn reference(&mut self, target: &'w str, close: &str) -> String {
        let Some(schema) = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) else {
            return self.tools.json_between(&Value::from(true), self.root, ("", close));
        };
        let key = format!("{target} {close}");
        self.rules.named(&key).unwrap_or_else(|| {
            let rule = self.rules.reserve(&key);
            let value = self.value(schema, close);
            self.rules.define(&rule, &value);
            rule
        })
    }
}
