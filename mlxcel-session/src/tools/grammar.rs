//! The grammar of an answer that calls tools, by the style's entry.

use std::fmt::Write;

use mlxcel_core::Result;
use serde_json::{Value, json};

use super::{ToolChoice, Tools};
use crate::chat::styles::Call;
use crate::structured::{Grammar, check_schema, close_fields, compact};

impl Tools {
    /// The grammar of an answer; `None` if it is unconstrained because no marker distinguishes calls from
    /// text.
    ///
    /// # Errors
    ///
    /// Those of parameters that are too large or too deep for a [`Grammar`].
    pub(super) fn grammar(&self) -> Result<Option<Grammar>> {
        let trigger = self.style.trigger();
        let is_channel = matches!(self.style.call, Call::Channel { .. });
        let auto = self.choice == ToolChoice::Auto;
        if self.choice == ToolChoice::None || (auto && (trigger.is_empty() || is_channel)) {
            return Ok(None);
        }
        let mut bodies = Vec::new();
        for definition in &self.definitions {
            let function = &definition["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if !matches!(&self.choice, ToolChoice::Named(chosen) if chosen != name) {
                bodies.push(self.body(name, &function["parameters"])?);
            }
        }
        let before = match self.style.call {
            Call::Object { before, .. } | Call::Named { before, .. } | Call::Channel { before, .. } => before,
        };
        let begin = format!("{}{before}", self.style.open);
        let mut rules = if !auto {
            format!("start: {} calls\n", self.literal(&begin))
        } else {
            // The mark is before them.
            let rest = self.literal(begin.strip_prefix(trigger).unwrap_or_default());
            if self.token(trigger).is_some() {
                format!("start: TEXT? {} {rest} calls | TEXT?\nTEXT: /(?s:.+)/\n", self.literal(trigger))
            } else {
                let lead = expression(trigger);
                format!("start: lead {rest} calls | TEXT?\nlead[lazy]: /(?s:.*){lead}/\nTEXT: /(?s:.+)/\n")
            }
        };
        let more = if self.style.parallel && self.parallel && !matches!(self.choice, ToolChoice::Named(_)) {
            format!("({} body)*", self.literal(&format!("{}{before}", self.style.separator)))
        } else {
            String::new()
        };
        // Writing to a string does not fail.
        let _ = writeln!(rules, "calls: body {more} {}", self.literal(self.style.close));
        let _ = writeln!(rules, "body: {}", bodies.join(" | "));
        Ok(Some(Grammar::of_rules(rules)))
    }

    /// A call behind what it begins with.
    fn body(&self, name: &str, parameters: &Value) -> Result<String> {
        let mut schema = if parameters.is_object() { parameters.clone() } else { json!({}) };
        check_schema(&schema)?;
        if let Some(schema) = schema.as_object_mut() {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        let schema = compact(&close_fields(schema));
        let quoted = |text: &str| Value::from(text).to_string();
        Ok(match self.style.call {
            Call::Object { name: name_field, arguments, after, .. } => {
                let begin = format!("{{\"{name_field}\": \"{name}\", \"{arguments}\": ");
                format!("{} %json {schema} {}", quoted(&begin), self.literal(&format!("}}{after}")))
            }
            Call::Named { between, after, .. } => {
                format!("{} {} %json {schema} {}", quoted(name), self.literal(between), self.literal(after))
            }
            Call::Channel { between, .. } => {
                format!("{} {} %json {schema}", quoted(name), self.literal(between))
            }
        })
    }

    /// The special token that is written `mark`.
    fn token(&self, mark: &str) -> Option<u32> {
        self.tokenizer.token_id(mark).filter(|&token| self.tokenizer.is_special(token))
    }

    /// `text` as a grammar writes it: special tokens by their ids, the rest in quotes.
    fn literal(&self, text: &str) -> String {
        let marks =
            self.style.marks.iter().filter_map(|mark| Some((text.find(mark)?, *mark, self.token(mark)?)));
        match marks.min_by_key(|&(at, ..)| at) {
            Some((at, mark, token)) => {
                let (before, after) = (&text[..at], &text[at + mark.len()..]);
                format!("{} <[{token}]> {}", self.literal(before), self.literal(after))
            }
            None if text.is_empty() => String::new(),
            None => Value::from(text).to_string(),
        }
    }
}

/// `text` in a regular expression between slashes.
fn expression(text: &str) -> String {
    let mut expression = String::with_capacity(2 * text.len());
    for character in text.chars() {
        if r"\.+*?()|[]{}^$#&-~/".contains(character) {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression
}
