//! Jinja for chat templates: the dialect that published templates use, with limits on every resource.
//!
//! A checkpoint's template is an untrusted program. Here its source and its nesting are bounded before it is parsed, and while it
//! runs every step, every byte that it holds, every level of recursion and of nested values is accounted for ([`meter`]); there
//! is no way to make a text or a list but by a builder that accounts for it first. Work is counted, not timed: what a template
//! does depends on the template and its input alone. See ADR 0013 for the rationale.

mod arguments;
mod ast;
mod call;
mod evaluate;
mod expression;
mod fault;
mod filters;
mod iterate;
mod lexer;
mod lists;
mod meter;
mod methods;
mod numbers;
mod operate;
mod origin;
mod parser;
mod predicates;
mod print;
mod printf;
mod scope;
mod strings;
mod value;

use std::rc::Rc;

use serde_json::Value as Json;

use ast::Statement;
use evaluate::Evaluator;
pub(crate) use fault::Fault;
use meter::{DictBuilder, ListBuilder, Meter};
pub(crate) use origin::{Origin, Origins};
use value::Value;

use crate::Message;

/// A template that was parsed.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<Statement>);

/// A variable of a template.
pub(crate) enum Variable<'a> {
    None,
    Bool(bool),
    Text(&'a str),
    Json(&'a Json),
    Messages(&'a [Message]),
}

impl Template {
    /// Parses a template.
    pub(crate) fn parse(source: &str) -> Result<Self, Fault> {
        parser::parse(source).map(Self)
    }

    /// Renders it; gives the text, and where each part of it comes from. A later variable hides an earlier one of the same name.
    /// `now` is what `strftime_now` says, the time of the call where it is none.
    pub(crate) fn render<'a>(
        &'a self,
        variables: &[(&'a str, Variable<'a>)],
        now: Option<&'a jiff::Zoned>,
    ) -> Result<(String, Origins), Fault> {
        let meter = Meter::new(variables.iter().map(|(_, variable)| variable.size()).sum());
        let mut evaluator = Evaluator::new(&meter, now)?;
        for (name, variable) in variables {
            let value = match variable {
                Variable::None => Value::None,
                Variable::Bool(value) => Value::Bool(*value),
                Variable::Text(text) => Value::text(text),
                Variable::Json(json) => Value::from_json(json, Origin::Given, &meter, 0)?,
                Variable::Messages(messages) => {
                    let mut list = ListBuilder::new(&meter)?;
                    for message in *messages {
                        list.push(of_message(message, &meter)?)?;
                    }
                    list.finish()
                }
            };
            evaluator.define(name, value)?;
        }
        evaluator.run(&self.0)
    }
}

/// Roles that templates support. Some write them into a control token, such as `<|user|>`; other roles are given texts like any.
const ROLES: [&str; 13] = [
    "system",
    "developer",
    "user",
    "assistant",
    "model",
    "tool",
    "function",
    "ipython",
    "observation",
    "documents",
    "context",
    "available_tools",
    "environment",
];

/// A message as a dictionary of its fields.
fn of_message<'a>(message: &'a Message, meter: &Rc<Meter>) -> Result<Value<'a>, Fault> {
    let role = if ROLES.contains(&message.role.as_str()) { Origin::Template } else { Origin::Given };
    let said =
        if matches!(message.role.as_str(), "assistant" | "model") { Origin::Answer } else { Origin::Given };
    let mut fields = DictBuilder::new(meter)?;
    fields.push(Value::text("role"), Value::text_from(&message.role, role))?;
    fields.push(Value::text("content"), Value::text_from(&message.content, said))?;
    for (name, value) in &message.extra {
        let origin = if value.is_string() { said } else { Origin::Given };
        let value = Value::from_json(value, origin, meter, 2)?;
        fields.set(Value::text_from(name, Origin::Given), value)?;
    }
    Ok(fields.finish())
}

impl Variable<'_> {
    /// About how many bytes its value takes, which the rendering may hold beside what it makes.
    fn size(&self) -> usize {
        match self {
            Self::None | Self::Bool(_) => 0,
            Self::Text(text) => text.len(),
            Self::Json(json) => size(json, 0),
            Self::Messages(messages) => messages
                .iter()
                .map(|message| {
                    let fields = message.extra.iter().map(|(name, value)| name.len() + size(value, 0) + 128);
                    message.role.len() + message.content.len() + 384 + fields.sum::<usize>()
                })
                .sum(),
        }
    }
}

fn size(json: &Json, depth: u16) -> usize {
    let inside: usize = match json {
        // What is deeper is refused when it is taken in.
        _ if depth > meter::MOST_NESTED => 0,
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(|item| size(item, depth + 1)).sum(),
        Json::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + 96 + size(value, depth + 1)).sum()
        }
        _ => 0,
    };
    inside + 96
}
