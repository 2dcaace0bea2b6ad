//! Sections of `tokenizer.json` that list steps: parsed here, and run by the crate `tokenizers`.
//!
//! Steps and their parameters are validated here, so that none panics or makes a text grow without limit. The
//! growth factor of a step follows from its parameters; the product over all steps limits the size of the
//! input.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// How many steps a section may have, and how deep lists of them may be nested.
const MOST_STEPS: usize = 256;
const MOST_NESTED: usize = 8;
/// How many times as long the steps before a model may make a text.
pub(super) const MOST_GROWTH: usize = 1 << 14;
/// How long a pattern may be, in bytes.
const LONGEST_PATTERN: usize = 16 << 10;
/// How long a text may be that is put before each part of another, in bytes.
const LONGEST_PREFIX: usize = 64;

/// The steps of a section, and the factor by which they can lengthen a text.
pub(super) struct Steps<T> {
    pub(super) steps: Vec<T>,
    pub(super) growth: usize,
}

impl<T> Steps<T> {
    /// Reads a section: one step, or a `Sequence` of them under `list`. `step` reads one of a kind, and says
    /// its growth; all together make a text at most `most_growth` times as long.
    pub(super) fn read(
        section: Option<&Value>,
        list: &str,
        most_growth: usize,
        mut step: impl FnMut(&str, &Value) -> Result<(T, usize), String>,
    ) -> Result<Self, String> {
        let mut flat = Vec::new();
        if let Some(section) = section {
            flatten(section, list, MOST_NESTED, &mut flat)?;
        }
        let mut this = Self { steps: Vec::new(), growth: 1 };
        for value in flat {
            let (step, growth) = step(kind(value)?, value)?;
            this.growth = this.growth.saturating_mul(growth.max(1));
            this.steps.push(step);
        }
        if this.growth > most_growth {
            return Err(format!("the {list} make a text grow more than {most_growth} times"));
        }
        Ok(this)
    }
}

fn flatten<'v>(value: &'v Value, list: &str, nested: usize, flat: &mut Vec<&'v Value>) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    if kind(value)? != "Sequence" {
        flat.push(value);
        return if flat.len() > MOST_STEPS {
            Err(format!("there are more than {MOST_STEPS} {list}"))
        } else {
            Ok(())
        };
    }
    let inside =
        value.get(list).and_then(Value::as_array).ok_or_else(|| format!("a sequence has no {list}"))?;
    let nested = nested.checked_sub(1).ok_or_else(|| format!("the {list} are nested too deep"))?;
    inside.iter().try_for_each(|value| flatten(value, list, nested, flat))
}

/// What a step is.
fn kind(value: &Value) -> Result<&str, String> {
    text(value, "type")
}

/// The text of a field.
pub(super) fn text<'v>(value: &'v Value, field: &str) -> Result<&'v str, String> {
    value.get(field).and_then(Value::as_str).ok_or_else(|| format!("a step has no string '{field}'"))
}

/// A step as the crate reads it.
pub(super) fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

/// A text that is put before each part of another.
pub(super) fn prefix(text: &str) -> Result<usize, String> {
    if text.len() > LONGEST_PREFIX {
        return Err(format!("a prefix of {} bytes is longer than {LONGEST_PREFIX}", text.len()));
    }
    Ok(text.len())
}

/// What a step looks for.
pub(super) enum Pattern<'v> {
    Text(&'v str),
    Expression(&'v str),
}

/// The field `pattern` of a step.
pub(super) fn pattern(value: &Value) -> Result<Pattern<'_>, String> {
    let field = value.get("pattern").ok_or("a step has no pattern")?;
    let pattern = match (text(field, "String"), text(field, "Regex")) {
        (Ok(""), _) => return Err("a pattern is empty".to_owned()),
        (Ok(text), _) => Pattern::Text(text),
        (_, Ok(expression)) => Pattern::Expression(expression),
        _ => return Err("a pattern is neither a text nor an expression".to_owned()),
    };
    let (Pattern::Text(text) | Pattern::Expression(text)) = &pattern;
    if text.len() > LONGEST_PATTERN {
        return Err(format!("a pattern of {} bytes is longer than {LONGEST_PATTERN}", text.len()));
    }
    Ok(pattern)
}

/// How much a replacement makes a text grow.
pub(super) fn growth_of_replacement(pattern: &Pattern<'_>, content: &str) -> usize {
    match pattern {
        Pattern::Text(text) => content.len().div_ceil(text.len()),
        // It may match single bytes, or nothing between any two.
        Pattern::Expression(_) => content.len() + 1,
    }
}

/// A step that is not known.
pub(super) fn unknown(list: &str, kind: &str) -> String {
    format!("among the {list}, '{kind}' is not known")
}
