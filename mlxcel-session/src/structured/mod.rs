//! Structured output: JSON by a schema, or text that matches a regular expression, a grammar or a list of
//! choices.

mod closed;
mod compile;
mod formats;
mod matcher;
mod schema;
#[cfg(feature = "schemars")]
mod typed;

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::{JsonCompileOptions, ParserFactory};
use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use crate::constraint::{Constraint, ConstraintSource};
use crate::model::Model;
use crate::sync::unpoisoned;
pub(crate) use closed::close_fields;
use matcher::Follower;
pub(crate) use schema::check as check_schema;
#[cfg(feature = "schemars")]
pub(crate) use typed::closed_schema_of;

/// The most bytes of a regular expression, a grammar, and of all choices.
const LONGEST: usize = 256 << 10;
/// How deep brackets may lie in one another in a regular expression or a grammar.
const DEEPEST: usize = 100;

/// A grammar for constrained decoding; pass it to [`Options::with_grammar`](crate::Options::with_grammar).
///
/// Only tokens that can continue a text of the grammar are sampled, and forced tokens are fed together
/// without sampling. So a text that ends with [`FinishReason::Stop`](crate::FinishReason::Stop) always
/// matches the whole grammar, for any model and sampling, unless
/// [`Options::stop_tokens`](crate::Options::stop_tokens) names a token that the grammar allows within a text;
/// with another reason, such as [`Length`](crate::FinishReason::Length), it may be incomplete. Special tokens
/// are never part of it.
/// Sampling, penalties and the other [`Options`](crate::Options) work as usual, in streams and in an
/// [`Engine`](crate::Engine). Disable the reasoning of models that reason before they
/// answer ([`ChatOptions::with_thinking`](crate::ChatOptions::with_thinking)), because the grammar applies
/// from the first token.
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
/// # Limits
///
/// Grammars may be untrusted. A grammar is compiled when a generation starts, before anything is computed,
/// and rejected if it is invalid or unsatisfiable ([`ErrorKind::InvalidInput`]), too large, too deep or too
/// much work to compile ([`ErrorKind::TooComplex`]), or uses a keyword that is not supported: no part of
/// a schema is silently ignored. References outside the schema are not followed. Parsing has limits of time
/// and memory per token; exceeding them fails that generation with [`ErrorKind::TooComplex`]. Four grammars
/// are compiled at a time and others wait for up to 10 seconds ([`ErrorKind::ResourceExhausted`]). Clones of
/// a grammar are compiled once.
#[derive(Clone, Debug)]
pub struct Grammar {
    kind: Kind,
    compiled: Compiled,
}

/// What a grammar was compiled to, for its clones: the answers of one request share it.
#[derive(Clone, Default)]
struct Compiled(Arc<Mutex<Option<CompiledFor>>>);

/// The vocabulary that a grammar was compiled for, and a parser at the beginning of a text.
type CompiledFor = (Weak<ParserFactory>, Follower);

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[derive(Clone, Debug)]
enum Kind {
    Schema(Arc<Value>),
    Regex(Arc<str>),
    Lark(Arc<str>),
    Choices(Arc<[String]>),
    /// A grammar written by this crate, whose parts were validated.
    Rules(Arc<str>),
}

impl Grammar {
    /// JSON by a schema (draft 2020-12 or older), on one line in the style of Python's `json.dumps`. [Most
    /// keywords are supported](https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md);
    /// unsupported ones, such as `uniqueItems` or a `oneOf` with overlapping alternatives, are errors when a
    /// generation starts.
    ///
    /// Unbounded numbers may exceed an `f64`, so set `minimum` and `maximum`; strings may be long, so set
    /// `maxLength`.
    pub fn json_schema(schema: impl Into<Value>) -> Self {
        Self::of(Kind::Schema(Arc::new(schema.into())))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(json!({ "type": "object" }))
    }

    /// Text that matches a whole regular expression, in the syntax of Rust's crate `regex`, without anchors
    /// and look-around.
    pub fn regex(expression: impl Into<String>) -> Self {
        Self::of(Kind::Regex(expression.into().into()))
    }

    /// Text of a context-free grammar in [llguidance's variant of
    /// Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md), with the start rule
    /// `start`. `%json {…}` embeds a JSON schema.
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self::of(Kind::Lark(grammar.into().into()))
    }

    /// One of a list of texts.
    pub fn choices<T: Into<String>>(choices: impl IntoIterator<Item = T>) -> Self {
        Self::of(Kind::Choices(choices.into_iter().map(Into::into).collect()))
    }

    /// A text of a grammar that was made of checked parts.
    pub(crate) fn of_rules(grammar: String) -> Self {
        Self::of(Kind::Rules(grammar.into()))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, compiled: Compiled::default() }
    }

    /// In the form that is compiled, checked.
    fn source(&self) -> Result<TopLevelGrammar> {
        let grammar = match &self.kind {
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
                check_embedded(grammar)?;
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
        let (size, stops) = (model.info().vocabulary_size, model.stop_tokens());
        let factory = model.vocabulary().factory(model.tokenizer()?, size, &stops)?;
        let mut compiled = unpoisoned(self.compiled.0.lock());
        let known = compiled.as_ref().filter(|(of, _)| of.ptr_eq(&Arc::downgrade(&factory)));
        if let Some((_, follower)) = known {
            return Ok(Box::new(follower.for_another()));
        }
        let matcher = compile::compile(&factory, self.source()?)?;
        let follower = Follower::new(matcher, model.info().vocabulary_size)?;
        let this = Box::new(follower.for_another());
        *compiled = Some((Arc::downgrade(&factory), follower));
        Ok(this)
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
        return Err(too_complex("its brackets are nested too deep").with_context("deepest", DEEPEST));
    }
    Ok(())
}

/// Refuses the schemas in a Lark grammar as those that are alone.
fn check_embedded(grammar: &str) -> Result<()> {
    const MARK: &str = "%json";
    for (at, _) in grammar.match_indices(MARK) {
        let rest = &grammar[at + MARK.len()..];
        // The compiler reports a value that is not JSON.
        if let Some(Ok(schema)) = serde_json::Deserializer::from_str(rest).into_iter().next() {
            schema::check(&schema)?;
        }
    }
    Ok(())
}

fn too_long() -> Error {
    too_complex("it is too long").with_context("most_bytes", LONGEST)
}

pub(crate) fn too_complex(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::TooComplex, "compile grammar", reason.into())
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, "compile grammar", reason)
}
