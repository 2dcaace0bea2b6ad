//! Jinja for chat templates: the dialect that published templates use, with bounds on everything.
//!
//! A checkpoint's template is a program of a stranger. Here its source and its nesting are bounded before it is parsed, and while it
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
mod parser;
mod predicates;
mod print;
mod printf;
mod scope;
mod strings;
mod value;

use serde_json::Value as Json;

use ast::Statement;
use evaluate::Evaluator;
pub(crate) use fault::Fault;
use meter::{DictBuilder, ListBuilder, Meter};
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

    /// Renders it. A later variable hides an earlier one of the same name.
    pub(crate) fn render<'a>(&'a self, variables: &[(&'a str, Variable<'a>)]) -> Result<String, Fault> {
        let meter = Meter::new(variables.iter().map(|(_, variable)| variable.size()).sum());
        let mut evaluator = Evaluator::new(&meter)?;
        for (name, variable) in variables {
            let value = match variable {
                Variable::None => Value::None,
                Variable::Bool(value) => Value::Bool(*value),
                Variable::Text(text) => Value::text(text),
                Variable::Json(json) => Value::from_json(json, &meter, 0)?,
                Variable::Messages(messages) => {
                    let mut list = ListBuilder::new(&meter)?;
                    for message in *messages {
                        let mut fields = DictBuilder::new(&meter)?;
                        fields.push(Value::text("role"), Value::text(&message.role))?;
                        fields.push(Value::text("content"), Value::text(&message.content))?;
                        for (name, value) in &message.extra {
                            fields.set(Value::text(name), Value::from_json(value, &meter, 2)?)?;
                        }
                        list.push(fields.finish())?;
                    }
                    list.finish()
                }
            };
            evaluator.define(name, value)?;
        }
        evaluator.run(&self.0)
    }
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
