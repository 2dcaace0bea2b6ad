//! Texts that a program can read: JSON of a schema, or what a regular expression, a grammar or a list of choices admits.

mod compile;
mod formats;
mod matcher;
mod schema;
#[cfg(feature = "schemars")]
mod typed;
mod vocabulary;

use std::sync::Arc;

use llguidance::JsonCompileOptions;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use crate::{Constraint, ConstraintSource, Model};
use matcher::Follower;
pub(crate) use schema::check as check_schema;
pub(crate) use vocabulary::Vocabulary;

/// The most bytes of a regular expression, a grammar, and of all choices.
const LONGEST: usize = 256 << 10;
/// How deep brackets may lie in one another in a regular expression or a grammar.
const DEEPEST: usize = 100;

/// What a text has to be, token by token; [`Options::with_grammar`](crate::Options::with_grammar) takes it.
///
/// Only tokens that a text of the grammar can go on with are chosen, and those that nothing else can follow are not even computed one by
/// one. So what ends as [`FinishReason::Stop`](crate::FinishReason::Stop) is always a whole text of the grammar, whatever the model and
/// the sampling are; any other reason, such as [`Length`](crate::FinishReason::Length), says that there may be its beginning alone. Special
/// tokens are never a part of it. Draws, penalties and the rest of [`Options`](crate::Options) work as ever, in streams and in an
/// [`Engine`](crate::Engine). A model that thinks before it answers should be told not to
/// ([`ChatOptions::with_thinking`](crate::ChatOptions::with_thinking)): the grammar holds from the first token.
///
/// ```no_run
/// use mlxcel_session::{Grammar, Model, Options};
///
/// let model = Model::open("models/storyteller")?;
/// let schema = serde_json::json!({
///     "type": "object",
///     "properties": { "name": { "type": "string", "maxLength": 20 }, "age": { "type": "integer", "minimum": 0, "maximum": 120 } },
///     "required": ["name", "age"],
///     "additionalProperties": false
/// });
/// let options = Options::new(200).with_grammar(Grammar::json_schema(schema));
/// let text = model.generate("Pip the fox as JSON: ", &options)?.complete()?.text;
/// let fox: serde_json::Value = serde_json::from_str(&text).unwrap();
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
///
/// # Bounds
///
/// A grammar may come from someone who means harm. It is compiled when a generation starts, before anything is computed, and refused there
/// where it is impossible ([`ErrorKind::InvalidInput`]), where it is too large, too deep or takes too long
/// ([`ErrorKind::InvalidInput`], [`ErrorKind::ResourceExhausted`]), and where it says what cannot be held to: nothing in a schema is ignored in
/// silence. References lead nowhere outside of the schema. The parser of a text has bounds of time and memory for each token; one that
/// exceeds them fails its own generation with [`ErrorKind::ResourceExhausted`].
#[derive(Clone, Debug)]
pub struct Grammar(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Schema(Arc<Value>),
    Regex(Arc<str>),
    Lark(Arc<str>),
    Choices(Arc<[String]>),
    /// A grammar of our own, whose parts were checked.
    Rules(Arc<str>),
}

impl Grammar {
    /// JSON of a schema (draft 2020-12 or older), written on one line as Python's `json.dumps` does. [The schemas that are
    /// understood](https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md) have most keywords; those that cannot be held to, such as `uniqueItems` or an `oneOf` whose
    /// alternatives overlap, are errors when a generation starts.
    ///
    /// Numbers without bounds may be beyond those of a `f64`; give `minimum` and `maximum`. So may texts be long: give `maxLength`.
    pub fn json_schema(schema: impl Into<Value>) -> Self {
        Self(Kind::Schema(Arc::new(schema.into())))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(json!({ "type": "object" }))
    }

    /// A text that a regular expression matches as a whole, in the syntax of Rust's crate `regex`, without anchors and without looking
    /// around.
    pub fn regex(expression: impl Into<String>) -> Self {
        Self(Kind::Regex(expression.into().into()))
    }

    /// A text of a context-free grammar, in [llguidance's variant of
    /// Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md), beginning with its rule `start`. `%json {…}` in it is a JSON schema.
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self(Kind::Lark(grammar.into().into()))
    }

    /// One of a list of texts.
    pub fn choices<T: Into<String>>(choices: impl IntoIterator<Item = T>) -> Self {
        Self(Kind::Choices(choices.into_iter().map(Into::into).collect()))
    }

    /// A text of a grammar that was made of checked parts.
    pub(crate) fn of_rules(grammar: String) -> Self {
        Self(Kind::Rules(grammar.into()))
    }

    /// In the form that is compiled, checked.
    fn source(&self) -> Result<TopLevelGrammar> {
        let grammar = match &self.0 {
            Kind::Schema(value) => {
                schema::check(value)?;
                GrammarWithLexer::from_json_schema(compact(value))
            }
            Kind::Regex(expression) => {
                check_text(expression)?;
                GrammarWithLexer::from_regex(expression)
            }
            Kind::Lark(grammar) => {
                check_text(grammar)?;
                GrammarWithLexer::from_lark(grammar.to_string())
            }
            Kind::Rules(grammar) => GrammarWithLexer::from_lark(grammar.to_string()),
            Kind::Choices(choices) => {
                if choices.iter().map(String::len).sum::<usize>() > LONGEST {
                    return Err(too_long());
                }
                if choices.is_empty() || choices.iter().any(String::is_empty) {
                    return Err(invalid("there is no choice, or one of them is empty"));
                }
                let alternatives: Vec<_> =
                    choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
                GrammarWithLexer::from_lark(format!("start: {}", alternatives.join(" | ")))
            }
        };
        Ok(TopLevelGrammar::from_grammar(grammar))
    }
}

impl ConstraintSource for Grammar {
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        let factory = model.vocabulary().factory(model)?;
        let matcher = compile::compile(&factory, self.source()?)?;
        Ok(Box::new(Follower::new(matcher, model.info().vocabulary_size)?))
    }
}

/// A schema that is written on one line: models that are unsure fill a text with space otherwise.
pub(crate) fn compact(schema: &Value) -> Value {
    let options = JsonCompileOptions {
        item_separator: ", ".to_owned(),
        key_separator: ": ".to_owned(),
        whitespace_flexible: false,
        ..JsonCompileOptions::default()
    };
    let options = serde_json::to_value(options).unwrap_or_default();
    let mut schema = schema.clone();
    formats::complete(&mut schema);
    match schema {
        Value::Object(mut map) => {
            map.insert("x-guidance".to_owned(), options);
            Value::Object(map)
        }
        // What meets `true` is any value.
        Value::Bool(true) => Value::Object(Map::from_iter([("x-guidance".to_owned(), options)])),
        other => other,
    }
}

/// Refuses what is too long, or nested so deeply that compiling it would be a burden.
fn check_text(text: &str) -> Result<()> {
    if text.len() > LONGEST {
        return Err(too_long());
    }
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > DEEPEST {
        return Err(invalid("its brackets are nested too deeply").with_context("deepest", DEEPEST));
    }
    Ok(())
}

fn too_long() -> Error {
    invalid("it is too long").with_context("most_bytes", LONGEST)
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, "compile grammar", reason)
}
