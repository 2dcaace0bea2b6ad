//! Jinja for chat templates: renders the dialect that published templates use, within limits on every
//! resource.
//!
//! A chat template is a program that comes with a checkpoint, and is not trusted. Its source and its nesting
//! are bounded before it is parsed. While it runs, every step, every byte, every level of recursion and of
//! nested values is charged to a budget: a string or a list can only be made by a builder that reserves its
//! memory first. Work is counted, not timed, so a template that renders on one machine renders on all. See
//! ADR 0013 for the rationale, and ADR 0029 for the comparison with minijinja.
//!
//! The language is Python's Jinja as transformers configures it for `apply_chat_template`: `trim_blocks`,
//! `lstrip_blocks`, loop controls, `{% generation %}`, `tojson`, `raise_exception`, `strftime_now`, and the
//! methods of Python's strings, lists and dictionaries. Inheritance, includes, imports and escaping are
//! errors that name the construct.
//!
//! A rendering also says where each part of its text comes from: only the template's own parts may contain
//! control tokens.
//!
//! ```
//! use mlxcel_template::{Field, Origin, Template, Variable};
//!
//! let template = Template::parse("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")?;
//! let message = vec![Field::text("role", "user", Origin::Template), Field::text("content", "Hi <|end|>", Origin::Input)];
//! let rendered = template.render(&[("messages", Variable::Dicts(vec![message]))], None)?;
//! assert_eq!(rendered.text, "<|user|>Hi <|end|>");
//! let parts: Vec<_> = rendered.origins.parts(0..rendered.text.len()).collect();
//! assert_eq!(parts, [(0..8, Origin::Template), (8..18, Origin::Input)]);
//! # Ok::<(), mlxcel_template::TemplateError>(())
//! ```
//!
//! | limit | value |
//! |---|---|
//! | nested blocks and brackets | 40 |
//! | depth of an expression | 120 |
//! | nested blocks, expressions and calls at run time | 300 |
//! | nested lists and dictionaries | 130 |
//! | work | 10 million steps plus one per byte of input |
//! | memory | 64 MiB plus four times the input |
//! | `range` | 100,000 numbers, as in Jinja's sandbox |
//!
//! Parsing and rendering take less than 512 KiB of stack, and less than 1 MiB if the crate is not optimized.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod arguments;
mod ast;
mod call;
mod digits;
mod error;
mod evaluate;
mod expression;
mod filters;
mod format;
mod hidden;
mod iterate;
mod lexer;
mod lists;
mod marked;
mod meter;
mod methods;
mod numbers;
mod numerals;
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
pub use error::TemplateError;
use evaluate::Evaluator;
use meter::{DictBuilder, ListBuilder, Meter};
pub use origin::{Origin, Origins};
use value::Value;

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template(Vec<Statement>);

/// A variable of a template.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Variable<'a> {
    /// Python's `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// A text that counts as the template's own, such as a special token.
    Text(&'a str),
    /// A JSON value, whose texts have the origin [`Origin::Input`].
    Json(&'a Json),
    /// A list of dictionaries whose texts have origins of their own, such as messages.
    Dicts(Vec<Vec<Field<'a>>>),
}

/// One field of a dictionary of [`Variable::Dicts`].
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    name: &'a str,
    value: FieldValue<'a>,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
enum FieldValue<'a> {
    Text(&'a str),
    Json(&'a Json),
}

/// A rendered text, and where each part of it comes from.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where each part of the text comes from.
    pub origins: Origins,
}

impl<'a> Field<'a> {
    /// A field with a text that comes from `origin`.
    pub fn text(name: &'a str, text: &'a str, origin: Origin) -> Self {
        Self { name, value: FieldValue::Text(text), origin }
    }

    /// A field with a JSON value, whose texts come from `origin`.
    pub fn json(name: &'a str, json: &'a Json, origin: Origin) -> Self {
        Self { name, value: FieldValue::Json(json), origin }
    }

    fn value(&self, meter: &Rc<Meter>) -> Result<Value<'a>, TemplateError> {
        match self.value {
            FieldValue::Text(text) => Ok(Value::text_from(text, self.origin)),
            FieldValue::Json(json) => Value::from_json(json, self.origin, meter, 2),
        }
    }

    /// About how many bytes it takes.
    fn size(&self) -> usize {
        let value = match self.value {
            FieldValue::Text(text) => text.len() + 96,
            FieldValue::Json(json) => size(json, 0),
        };
        self.name.len() + value + 128
    }
}

impl Template {
    /// Parses the template `source`. The caller bounds its length.
    ///
    /// # Errors
    ///
    /// If it is not valid Jinja, is nested deeper than the limits allow, or uses a construct that is not
    /// supported.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        parser::parse(source).map(Self)
    }

    /// Renders it with `variables`, of which a later one hides an earlier one of the same name. A later field
    /// of a dictionary replaces an earlier one likewise. `now` is the time that `strftime_now` prints;
    /// defaults to the time of the call.
    ///
    /// # Errors
    ///
    /// If the template raises an exception, applies an operation to values that do not support it, or exceeds
    /// a limit.
    pub fn render(
        &self,
        variables: &[(&str, Variable<'_>)],
        now: Option<&jiff::Zoned>,
    ) -> Result<Rendered, TemplateError> {
        let meter = Meter::new(variables.iter().map(|(_, variable)| variable.size()).sum());
        let mut evaluator = Evaluator::new(&meter, now)?;
        for (name, variable) in variables {
            let value = match variable {
                Variable::None => Value::None,
                Variable::Bool(value) => Value::Bool(*value),
                Variable::Text(text) => Value::text(text),
                Variable::Json(json) => Value::from_json(json, Origin::Input, &meter, 0)?,
                Variable::Dicts(dicts) => {
                    let mut list = ListBuilder::new(&meter)?;
                    for fields in dicts {
                        list.push(dict(fields, &meter)?)?;
                    }
                    list.finish()
                }
            };
            evaluator.scopes.set(name, value)?;
        }
        let (text, origins) = evaluator.run(&self.0)?;
        Ok(Rendered { text, origins })
    }
}

fn dict<'a>(fields: &[Field<'a>], meter: &Rc<Meter>) -> Result<Value<'a>, TemplateError> {
    let mut dict = DictBuilder::new(meter)?;
    for field in fields {
        dict.set(Value::text_from(field.name, Origin::Input), field.value(meter)?)?;
    }
    Ok(dict.finish())
}

impl Variable<'_> {
    /// About how many bytes its value takes, which the rendering may hold beside what it makes.
    fn size(&self) -> usize {
        match self {
            Self::None | Self::Bool(_) => 0,
            Self::Text(text) => text.len(),
            Self::Json(json) => size(json, 0),
            Self::Dicts(dicts) => {
                dicts.iter().map(|fields| 128 + fields.iter().map(Field::size).sum::<usize>()).sum()
            }
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
