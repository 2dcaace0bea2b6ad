//! The grammar of an answer that calls tools, by the style's entry.

use std::fmt::Write;

use mlxcel_core::Result;
use serde_json::{Map, Value, json};

use super::values::types;
use super::{ToolChoice, Tools};
use crate::chat::styles::{Argument, Call, Id};
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
        let (mut bodies, mut texts) = (Vec::new(), Texts::default());
        for definition in self.definitions.iter() {
            let function = &definition["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if !matches!(&self.choice, ToolChoice::Named(chosen) if chosen != name) {
                bodies.push(self.body(name, &function["parameters"], &mut texts)?);
            }
        }
        let before = self.style.call.before();
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
        rules.push_str(&texts.0);
        Ok(Some(Grammar::of_rules(rules)))
    }

    /// A call behind what it begins with.
    fn body(&self, name: &str, parameters: &Value, texts: &mut Texts) -> Result<String> {
        let mut schema = if parameters.is_object() { parameters.clone() } else { json!({}) };
        check_schema(&schema)?;
        if let Call::Tagged { between, argument, after, .. } = &self.style.call {
            let (name, between) = (Value::from(name), self.spaced(between));
            // A tool without parameters takes none.
            let schema = if parameters.is_null() { json!({ "additionalProperties": false }) } else { schema };
            let arguments = self.arguments(argument, &close_fields(schema), texts);
            return Ok(format!("{name} {between} {arguments} {}", self.spaced(after)));
        }
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
            Call::Named { id, between, after, .. } => {
                let id = if id == Id::Number { "\":\" /[0-9]{1,4}/" } else { "" };
                let (between, after) = (self.literal(between), self.literal(after));
                format!("{} {id} {between} %json {schema} {after}", quoted(name))
            }
            Call::Channel { between, .. } => {
                format!("{} {} %json {schema}", quoted(name), self.literal(between))
            }
            // It returned above.
            Call::Tagged { .. } => String::new(),
        })
    }

    /// The arguments by the schema `root`, each between tags, in the order of its fields.
    fn arguments(&self, tags: &Argument, root: &Value, texts: &mut Texts) -> String {
        let no_fields = Map::new();
        let fields = root["properties"].as_object().unwrap_or(&no_fields);
        let is_required =
            |name: &str| root["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
        let mut arguments: Vec<String> = Vec::new();
        for (name, schema) in fields {
            let begin = self.literal(&format!("{}{name}{}", tags.open, tags.named));
            let value = self.value(schema, root, tags, texts);
            arguments.push(format!("({begin} {value}){}", if is_required(name) { "" } else { "?" }));
        }
        if root["additionalProperties"] != false {
            let (open, named) = (self.literal(tags.open), self.literal(tags.named));
            let value = self.value(&root["additionalProperties"], root, tags, texts);
            arguments.push(format!("({open} /[A-Za-z0-9_.-]{{1,64}}/ {named} {value})*"));
        }
        arguments.join(" ")
    }

    /// A value of the schema, between the tags. Of a string the length and a list of choices are checked.
    fn value(&self, schema: &Value, root: &Value, tags: &Argument, texts: &mut Texts) -> String {
        let (middle, close) = (self.spaced(tags.middle), self.spaced(tags.close));
        if types(schema, root).contains(&"string") {
            let choices = schema["enum"].as_array().map(|choices| {
                let text = |choice: &Value| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
                let written = choices.iter().map(|choice| Value::from(text(choice)).to_string());
                format!("{middle} ({}) {close}", written.collect::<Vec<_>>().join(" | "))
            });
            return choices.unwrap_or_else(|| {
                let bound = |field: &str| schema[field].as_u64();
                let bounds = (bound("minLength").unwrap_or(0), bound("maxLength"));
                self.text(tags, (bounds != (0, None)).then_some(bounds), texts)
            });
        }
        let mut schema = schema.clone();
        if let Some(schema) = schema.as_object_mut() {
            for definitions in ["$defs", "definitions"] {
                schema.extend(root.get(definitions).map(|value| (definitions.to_owned(), value.clone())));
            }
        }
        let written = schema.to_string();
        let known = |target: &str| ["/$defs/", "/definitions/"].iter().any(|begin| target.starts_with(begin));
        if !written.split("\"$ref\":\"#").skip(1).all(known) {
            // It refers to a part of the schema that is not a part of this one.
            schema = json!({});
        }
        format!("{middle} %json {} {close}", compact(&schema))
    }

    /// A text of a length between the bounds, between the tags.
    fn text(&self, tags: &Argument, bounds: Option<(u64, Option<u64>)>, texts: &mut Texts) -> String {
        let mark = tags.close.trim();
        let end = tags.close.trim_start().strip_prefix(mark).unwrap_or_default();
        let characters = match bounds {
            None => "*".to_owned(),
            Some((least, most)) => {
                format!("{{{least},{}}}", most.map_or_else(String::new, |most| most.to_string()))
            }
        };
        let line_feed = |is_of_tag: bool| if is_of_tag { "\\n?" } else { "" };
        // Without a tag behind its name, a line feed cannot be told apart from the text.
        let (middle, begin) = match tags.middle.trim() {
            "" => (String::new(), line_feed(!tags.middle.is_empty())),
            _ => (self.spaced(tags.middle), ""),
        };
        let text = format!("{begin}(?s:.{characters}){}", line_feed(tags.close.starts_with('\n')));
        let (rule, mark) = match self.token(mark) {
            Some(token) => (texts.add("", &text), format!("<[{token}]>")),
            None => (texts.add("[lazy]", &format!("{text}{}", expression(mark))), String::new()),
        };
        format!("{middle} {rule} {mark} {}", self.spaced(end))
    }

    /// `text` as a grammar writes it, with or without its line feeds.
    fn spaced(&self, text: &str) -> String {
        let lines: Vec<String> = text.split('\n').map(|line| self.literal(line)).collect();
        lines.join(" \"\\n\"? ")
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

/// Rules of texts, a line each.
#[derive(Default)]
struct Texts(String);

impl Texts {
    /// The name of a rule of the texts that match `expression`.
    fn add(&mut self, attribute: &str, expression: &str) -> String {
        let rule = format!("{attribute}: /{expression}/");
        let known = self.0.lines().position(|line| line.ends_with(&rule));
        let number = known.unwrap_or_else(|| self.0.lines().count());
        if known.is_none() {
            // Writing to a string does not fail.
            let _ = writeln!(self.0, "text_{number}{rule}");
        }
        format!("text_{number}")
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
