//! The grammar of an answer that may call tools behind reasoning between tags, in which a mark begins no call.

use mlxcel_core::{Result, TokenId};

use super::Tools;
use super::grammar::expression;
use crate::chat::{ReasoningFormat, ReasoningMarks};
use crate::constraint::{Constraint, ConstraintSource};
use crate::model::Model;
use crate::structured::Grammar;

/// Grammars of answers behind prompts that end outside and inside reasoning.
#[derive(Debug)]
pub(super) struct AfterReasoning {
    format: ReasoningFormat,
    outside: Grammar,
    inside: Grammar,
}

impl ConstraintSource for AfterReasoning {
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        self.outside.start(model)
    }

    fn start_after(&self, model: &Model, prompt: &[TokenId]) -> Result<Box<dyn Constraint>> {
        let is_inside = self.format.splitter_after(model.tokenizer()?, prompt)?.is_in_tags();
        if is_inside { self.inside.start(model) } else { self.outside.start(model) }
    }
}

impl Tools {
    /// The tags of reasoning, if the model has them.
    pub(super) fn reasoning_tags(&self) -> Option<(&'static str, &'static str)> {
        match self.tokenizer.reasoning()?.0 {
            ReasoningMarks::Tags { open, close } => Some((open, close)),
            ReasoningMarks::Channels | ReasoningMarks::Recipients => None,
        }
    }

    /// What follows a regular expression whose text must not begin with reasoning. Empty if a special token
    /// opens reasoning: texts contain none.
    pub(super) fn no_reasoning(&self) -> String {
        match self.reasoning_tags() {
            Some((open, _)) if self.special_of(open).is_none() => {
                format!(" & ~/\\s*{}(?s:.*)/", expression(open))
            }
            _ => String::new(),
        }
    }

    /// The constraint of an answer that the rules `answer` and `TEXT` of `lines` describe.
    pub(super) fn after_reasoning(&self, lines: &str) -> Option<AfterReasoning> {
        let (format, (open, close)) = self.tokenizer.reasoning().cloned().zip(self.reasoning_tags())?;
        let of = |is_inside: bool| {
            let (mark, begin) = match self.special_of(open) {
                _ if is_inside => (String::new(), String::new()),
                Some((token, after)) => (format!("<[{token}]> {}", self.literal(after)), String::new()),
                None => (String::new(), format!("\\s*{}", expression(open))),
            };
            let (thought, end) = match self.special_of(close) {
                Some((token, _)) => (format!(": /{begin}(?s:.*)/"), format!("<[{token}]>")),
                None => (format!("[lazy]: /{begin}(?s:.*){}/", expression(close)), String::new()),
            };
            let otherwise = if is_inside { "TEXT?" } else { "answer" };
            // The answer may end within reasoning.
            let cut = if mark.is_empty() { String::new() } else { format!("| {mark} TEXT?") };
            let start = format!("start: {mark} thought {end} answer | {otherwise} {cut}\nthought{thought}\n");
            Grammar::of_rules(start + lines)
        };
        Some(AfterReasoning { format, outside: of(false), inside: of(true) })
    }

    /// The special token that a tag begins with, and what is behind it.
    fn special_of<'t>(&self, tag: &'t str) -> Option<(TokenId, &'t str)> {
        let mark = self.tokenizer.reasoning()?.marks().into_iter().find(|mark| tag.starts_with(mark))?;
        let token = self.tokenizer.token_id(mark).filter(|&token| self.tokenizer.is_special(token))?;
        Some((token, &tag[mark.len()..]))
    }
}
