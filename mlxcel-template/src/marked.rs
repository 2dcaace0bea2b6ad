//! Strings that are marked as safe, which the filters `safe` and `escape` return: a string that is added to one is
//! escaped for HTML, as in Python's `markupsafe`.

use super::error::{Result, TemplateError};
use super::evaluate::Evaluator;
use super::value::{Text, Value};

impl<'a> Evaluator<'a> {
    pub(super) fn marked(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let mut out = self.builder()?;
        out.push_text(text)?;
        Ok(out.finish_marked())
    }

    /// `text` escaped for HTML, and marked.
    pub(super) fn escaped(&self, text: &Text<'a>) -> Result<Text<'a>> {
        let escaped = self.map_text(text, |character, out| match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(character),
        })?;
        self.text_of(&self.keep_mark(true, escaped)?)
    }

    /// `left + right`, of which one is marked.
    pub(super) fn add_marked(&self, left: &Text<'a>, right: &Text<'a>) -> Result<Value<'a>> {
        let mut out = self.builder()?;
        for text in [left, right] {
            if text.is_marked() {
                out.push_text(text)?;
            } else {
                out.push_text(&self.escaped(text)?)?;
            }
        }
        Ok(out.finish_marked())
    }

    /// The result of an operation on a string, whose mark it keeps.
    pub(super) fn keep_mark(&self, is_marked: bool, result: Value<'a>) -> Result<Value<'a>> {
        match &result {
            Value::Text(text) if is_marked => self.marked(text),
            Value::Seq(seq) if is_marked => {
                let mut list = self.list()?;
                for item in &seq.items {
                    list.push(self.keep_mark(true, item.clone())?)?;
                }
                Ok(list.into_seq(seq.tuple))
            }
            _ => Ok(result),
        }
    }
}

/// The error of operations that escape their arguments if `text` is marked.
pub(super) fn refuse_marked(operation: &str, text: &Text<'_>) -> Result<()> {
    if text.is_marked() {
        let message = format!("'{operation}' of a string that 'safe' or 'escape' returns is not supported");
        return Err(TemplateError::new(message));
    }
    Ok(())
}
