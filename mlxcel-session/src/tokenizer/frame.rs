//! The section `post_processor`: the special tokens added around a text.
//!
//! The processors of the crate `tokenizers` also track offsets and types of tokens, which are not needed here, and some
//! of them panic. Only the ids before and after the text are kept.

use mlxcel_core::TokenId;
use serde_json::Value;

use super::steps::{Steps, text, unknown};

const LIST: &str = "processors";

/// How many tokens there may be around a text.
const MOST_TOKENS: usize = 256;

/// The tokens before and after a text.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Frame {
    pub(super) before: Vec<TokenId>,
    pub(super) after: Vec<TokenId>,
}

impl Frame {
    pub(super) fn read(section: Option<&Value>) -> Result<Self, String> {
        let mut frame = Self::default();
        let steps = Steps::read(section, LIST, 1, |kind, value| {
            let frame = match kind {
                // It moves offsets.
                "ByteLevel" => Self::default(),
                "BertProcessing" | "RobertaProcessing" => {
                    Self { before: vec![pair(value, "cls")?], after: vec![pair(value, "sep")?] }
                }
                "TemplateProcessing" => Self::of_template(value)?,
                _ => return Err(unknown(LIST, kind)),
            };
            Ok((frame, 1))
        })?;
        for step in steps.steps {
            // Each adds its tokens around the output of the previous one.
            frame.before.splice(0..0, step.before);
            frame.after.extend(step.after);
        }
        if frame.before.len() + frame.after.len() > MOST_TOKENS {
            return Err(format!("more than {MOST_TOKENS} special tokens are added to a text"));
        }
        Ok(frame)
    }

    /// The template for one text: special tokens, the text, special tokens.
    fn of_template(value: &Value) -> Result<Self, String> {
        let mut frame = Self::default();
        let mut seen = false;
        let pieces = value.get("single").and_then(Value::as_array).ok_or("a template has no pieces")?;
        for piece in pieces {
            if let Some(sequence) = piece.get("Sequence") {
                if seen || text(sequence, "id")? != "A" {
                    return Err("a template for one text has another, or has it twice".to_owned());
                }
                seen = true;
                continue;
            }
            let name = text(piece.get("SpecialToken").ok_or("a piece of a template is unknown")?, "id")?;
            let token = value.get("special_tokens").and_then(|tokens| tokens.get(name));
            let ids = token.and_then(|token| token.get("ids")).and_then(Value::as_array);
            let ids = ids.ok_or("a template names a token without ids")?;
            let ids = ids.iter().map(id).collect::<Result<Vec<_>, _>>()?;
            if seen { &mut frame.after } else { &mut frame.before }.extend(ids);
        }
        if seen { Ok(frame) } else { Err("a template has no place for the text".to_owned()) }
    }
}

/// The id of a token that is given with its text.
fn pair(value: &Value, field: &str) -> Result<TokenId, String> {
    id(value.get(field).and_then(|pair| pair.get(1)).unwrap_or(&Value::Null))
}

fn id(value: &Value) -> Result<TokenId, String> {
    let id = value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    id.ok_or_else(|| "a token id is not a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn added_special_tokens_match_the_tokenizers_crate() {
        let template = json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1, 7], "tokens": ["<s>", "x"]},
                "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}});
        let expected = Frame { before: vec![1, 7], after: vec![2] };
        assert_eq!(Frame::read(Some(&template)).unwrap(), expected);
        let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": true}, template]});
        assert_eq!(Frame::read(Some(&sequence)).unwrap(), expected);
        let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]});
        assert_eq!(Frame::read(Some(&bert)).unwrap(), Frame { before: vec![101], after: vec![102] });
        assert_eq!(Frame::read(None).unwrap(), Frame::default());
    }
}
