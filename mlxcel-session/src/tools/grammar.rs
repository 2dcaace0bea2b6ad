//! The grammar of an answer that calls tools, by the style's entry.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use mlxcel_core::Result;
use serde_json::{Value, json};

use super::values::{requires, types};
use super::{ToolChoice, Tools};
use crate::chat::style::{Argument, Call, Id};
use crate::constraint::ConstraintSource;
use crate::structured::{Grammar, check_schema, close_fields, compact, too_complex};

/// The most bytes of the schemas that arguments between tags bring, each with the definitions that it refers to.
const MOST_EMBEDDED: usize = 4 << 20;

impl Tools {
    /// The grammar of an answer; `None` if it is unconstrained because no marker distinguishes calls from
    /// text.
    ///
    /// # Errors
    ///
    /// Those of parameters that are too large or too deep for a [`Grammar`].
    pub(super) fn grammar(&self) -> Result<Option<Arc<dyn ConstraintSource>>> {
        let trigger = self.style.trigger();
        let auto = self.choice == ToolChoice::Auto;
        if self.choice == ToolChoice::None || (auto && (trigger.is_empty() || self.channels().is_some())) {
            return Ok(None);
        }
        let (mut bodies, mut rules) = (Vec::new(), Rules::default());
        for definition in self.definitions.iter() {
            let function = &definition["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if !matches!(&self.choice, ToolChoice::Named(chosen) if chosen != name) {
                bodies.push(self.body(name, &function["parameters"], &mut rules)?);
            }
        }
        let before = self.style.call.before();
        let begin = format!("{}{before}", self.style.open);
        let mut lines = if !auto {
            let begin = begin.strip_prefix(self.style.prompted).unwrap_or(&begin);
            format!("start: {} calls\n", self.literal(begin))
        } else {
            // The mark is before them.
            let rest = self.literal(begin.strip_prefix(trigger).unwrap_or_default());
            let outside = self.no_reasoning();
            let (lead, mark, rule) = match self.special(trigger) {
                Some((before, token, after)) => {
                    let rule = format!("LEAD: /(?s:.*){}/{outside}", expression(before));
                    ("LEAD", format!("<[{token}]> {}", self.literal(after)), rule)
                }
                None => {
                    let rule = format!("lead[lazy]: /(?s:.*){}/{outside}", expression(trigger));
                    ("lead", String::new(), rule)
                }
            };
            format!("answer: {lead} {mark} {rest} calls | TEXT?\n{rule}\nTEXT: /(?s:.+)/\n")
        };
        let more = if self.style.parallel && self.parallel && !matches!(self.choice, ToolChoice::Named(_)) {
            format!("({} body)*", self.literal(&format!("{}{before}", self.style.separator)))
        } else {
            String::new()
        };
        // Writing to a string does not fail.
        let _ = writeln!(lines, "calls: body {more} {}", self.literal(self.style.close));
        let _ = writeln!(lines, "body: {}", bodies.join(" | "));
        lines.push_str(&rules.lines);
        if !auto {
            return Ok(Some(Arc::new(Grammar::of_rules(lines))));
        }
        let constraint =
            self.after_reasoning(&lines).map(|source| Arc::new(source) as Arc<dyn ConstraintSource>);
        Ok(Some(constraint.unwrap_or_else(|| Arc::new(Grammar::of_rules(format!("start: answer\n{lines}"))))))
    }

    /// A call behind what it begins with.
    fn body(&self, name: &str, parameters: &Value, rules: &mut Rules) -> Result<String> {
        let mut schema = if parameters.is_object() { parameters.clone() } else { json!({}) };
        check_schema(&schema)?;
        // References to it are of this tool.
        rules.targets.clear();
        // A tool without parameters takes none.
        let fields =
            if parameters.is_null() { json!({ "additionalProperties": false }) } else { schema.clone() };
        let fields = close_fields(fields);
        if let Some(schema) = schema.as_object_mut() {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        let (name, object) = (Value::from(name), compact(&close_fields(schema)));
        let body = match self.style.call {
            Call::Object { name: name_field, arguments, after, .. } => {
                let begin = Value::from(format!("{{\"{name_field}\": {name}, \"{arguments}\": "));
                format!("{begin} %json {object} {}", self.literal(&format!("}}{after}")))
            }
            Call::Named { id, between, after, .. } => {
                let id = if id == Id::Number { "\":\" /[0-9]{1,4}/" } else { "" };
                let (between, after) = (self.literal(between), self.literal(after));
                format!("{name} {id} {between} %json {object} {after}")
            }
            Call::Channel { between, .. } => format!("{name} {} %json {object}", self.literal(between)),
            Call::Tagged { between, argument, after, .. } => {
                let arguments = self.arguments(&argument, &fields, rules);
                format!("{name} {} {arguments} {}", self.spaced(between), self.spaced(after))
            }
            Call::Elements { between, mark, after, .. } => {
                let elements = self.elements(mark, &fields, rules);
                format!("{name} {} {elements} {}", self.literal(between), self.literal(after))
            }
            Call::Keywords { open, assign, literals, after, .. } => {
                let arguments = self.keywords(assign, literals, &fields, rules);
                format!("{name} {} {arguments} {}", self.literal(open), self.literal(after))
            }
        };
        if rules.embedded > MOST_EMBEDDED {
            let reason = "the definitions that arguments refer to are too large to be repeated for each";
            return Err(too_complex(reason).with_context("most_bytes", MOST_EMBEDDED));
        }
        Ok(body)
    }

    /// The arguments by the schema `root`, each between tags, in the order of its fields.
    fn arguments(&self, tags: &Argument, root: &Value, rules: &mut Rules) -> String {
        let mut arguments: Vec<String> = Vec::new();
        for (name, schema) in root["properties"].as_object().into_iter().flatten() {
            let argument =
                self.argument(&self.literal(&format!("{}{name}", tags.open)), schema, root, tags, rules);
            arguments.push(format!("({argument}){}", if requires(root, name) { "" } else { "?" }));
        }
        let further = &root["additionalProperties"];
        if further != false {
            let name = format!("{} /[A-Za-z0-9_.-]{{1,64}}/", self.literal(tags.open));
            arguments.push(format!("({})*", self.argument(&name, further, root, tags, rules)));
        }
        arguments.join(" ")
    }

    /// An argument that begins with `begin`, up to its name.
    fn argument(
        &self,
        begin: &str,
        schema: &Value,
        root: &Value,
        tags: &Argument,
        rules: &mut Rules,
    ) -> String {
        let types = types(schema, root);
        let is_string = types.contains(&"string");
        let between = (tags.middle, tags.close);
        let named = |kind: &str| self.literal(&format!("{kind}{}", tags.named));
        let Some([string, other]) = tags.kinds else {
            let value = if is_string {
                self.string_between(schema, between, rules)
            } else {
                self.json_between(schema, root, between, rules)
            };
            return format!("{begin} {} {value}", named(""));
        };
        let mut kinds = Vec::new();
        if is_string {
            kinds.push(format!("{} {}", named(string), self.string_between(schema, between, rules)));
        }
        if types.iter().any(|kind| *kind != "string") {
            kinds.push(format!("{} {}", named(other), self.json_between(schema, root, between, rules)));
        }
        format!("{begin} ({})", kinds.join(" | "))
    }

    /// A value of the schema as JSON, between the tags. Nothing once too much was written so.
    pub(super) fn json_between(
        &self,
        schema: &Value,
        root: &Value,
        (middle, close): (&str, &str),
        rules: &mut Rules,
    ) -> String {
        let (mut schema, written) = (schema.clone(), schema.to_string());
        let refers = ["\"$ref\":", "\"$dynamicRef\":"].iter().any(|field| written.contains(field));
        if let Some(schema) = schema.as_object_mut().filter(|_| refers) {
            for definitions in ["$defs", "definitions"] {
                schema.extend(root.get(definitions).map(|value| (definitions.to_owned(), value.clone())));
            }
        }
        let written = schema.to_string();
        rules.embedded += written.len();
        if rules.embedded > MOST_EMBEDDED {
            return String::new();
        }
        let known = |target: &str| ["/$defs/", "/definitions/"].iter().any(|begin| target.starts_with(begin));
        if !written.split("\"$ref\":\"#").skip(1).all(known) {
            // It refers to a part of the schema that is not a part of this one.
            schema = json!({});
        }
        format!("{} %json {} {}", self.spaced(middle), compact(&schema), self.spaced(close))
    }

    /// A string of the schema, between the tags. Its length and a list of choices are checked.
    pub(super) fn string_between(&self, schema: &Value, tags: (&str, &str), rules: &mut Rules) -> String {
        let choices = schema["enum"].as_array().map(|choices| {
            let (middle, close) = (self.spaced(tags.0), self.spaced(tags.1));
            let text = |choice: &Value| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
            let written = choices.iter().map(|choice| Value::from(text(choice)).to_string());
            format!("{middle} ({}) {close}", written.collect::<Vec<_>>().join(" | "))
        });
        choices.unwrap_or_else(|| {
            let bound = |field: &str| schema[field].as_u64();
            let bounds = (bound("minLength").unwrap_or(0), bound("maxLength"));
            self.text(tags, (bounds != (0, None)).then_some(bounds), rules)
        })
    }

    /// A text of a length between the bounds, between the tags.
    fn text(
        &self,
        (middle, close): (&str, &str),
        bounds: Option<(u64, Option<u64>)>,
        rules: &mut Rules,
    ) -> String {
        let mark = close.trim();
        let end = close.trim_start().strip_prefix(mark).unwrap_or_default();
        let characters = match bounds {
            None => "*".to_owned(),
            Some((least, most)) => times(least, most),
        };
        let line_feed = |is_of_tag: bool| if is_of_tag { "\\n?" } else { "" };
        // Without a tag behind its name, a line feed cannot be told apart from the text.
        let (middle, begin) = match middle.trim() {
            "" => (String::new(), line_feed(!middle.is_empty())),
            _ => (self.spaced(middle), ""),
        };
        let text = format!("{begin}(?s:.{characters}){}", line_feed(close.starts_with('\n')));
        let (rule, mark) = match self.special(mark) {
            Some((before, token, after)) => (
                rules.add_text("", &format!("{text}{}", expression(before))),
                format!("<[{token}]> {}", self.literal(after)),
            ),
            None => (rules.add_text("[lazy]", &format!("{text}{}", expression(mark))), String::new()),
        };
        format!("{middle} {rule} {mark} {}", self.spaced(end))
    }

    /// `text` as a grammar writes it, with or without its line feeds.
    fn spaced(&self, text: &str) -> String {
        let lines: Vec<String> = text.split('\n').map(|line| self.literal(line)).collect();
        lines.join(" \"\\n\"? ")
    }

    /// The first special token that `text` has, with what is before and behind it.
    fn special<'t>(&self, text: &'t str) -> Option<(&'t str, u32, &'t str)> {
        let token =
            |mark: &str| self.tokenizer.token_id(mark).filter(|&token| self.tokenizer.is_special(token));
        let marks = self.style.marks.iter().filter_map(|mark| Some((text.split_once(mark)?, token(mark)?)));
        let ((before, after), token) = marks.min_by_key(|((before, _), _)| before.len())?;
        Some((before, token, after))
    }

    /// `text` as a grammar writes it: special tokens by their ids, the rest in quotes.
    pub(super) fn literal(&self, text: &str) -> String {
        match self.special(text) {
            Some((before, token, after)) => {
                format!("{} <[{token}]> {}", self.literal(before), self.literal(after))
            }
            None if text.is_empty() => String::new(),
            None => Value::from(text).to_string(),
        }
    }
}

/// Rules that others refer to, a line each.
#[derive(Default)]
pub(super) struct Rules {
    lines: String,
    /// How many have a name.
    count: usize,
    /// The names of those that say the same.
    known: HashMap<String, String>,
    /// The names of those of what references refer to.
    targets: HashMap<String, String>,
    /// How many bytes of JSON schemas arguments between tags have.
    embedded: usize,
}

impl Rules {
    /// The name of a rule of the texts that match `expression`.
    fn add_text(&mut self, attribute: &str, expression: &str) -> String {
        self.add_line(&format!("{attribute}: /{expression}/"))
    }

    /// The name of a rule that says `body`.
    pub(super) fn add(&mut self, body: &str) -> String {
        self.add_line(&format!(": {body}"))
    }

    fn add_line(&mut self, rule: &str) -> String {
        if let Some(name) = self.known.get(rule) {
            return name.clone();
        }
        let name = self.name();
        self.known.insert(rule.to_owned(), name.clone());
        // Writing to a string does not fail.
        let _ = writeln!(self.lines, "{name}{rule}");
        name
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("part{}", self.count)
    }

    /// The name of the rule of the target of a reference, and whether it is new and has to be
    /// [defined](Self::define).
    pub(super) fn target(&mut self, target: &str) -> (String, bool) {
        if let Some(name) = self.targets.get(target) {
            return (name.clone(), false);
        }
        let name = self.name();
        self.targets.insert(target.to_owned(), name.clone());
        (name, true)
    }

    pub(super) fn define(&mut self, name: &str, body: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.lines, "{name}: {body}");
    }
}

/// How often something is repeated, as a grammar writes it.
pub(super) fn times(least: u64, most: Option<u64>) -> String {
    format!("{{{least},{}}}", most.map_or_else(String::new, |most| most.to_string()))
}

/// `text` in a regular expression between slashes.
pub(super) fn expression(text: &str) -> String {
    let mut expression = String::with_capacity(2 * text.len());
    for character in text.chars() {
        if r"\.+*?()|[]{}^$#&-~/".contains(character) {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression
}
