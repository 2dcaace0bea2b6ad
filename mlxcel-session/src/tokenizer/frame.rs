//! The section `post_processor`: the special tokens added around a text.
//!
//! The processors of the crate `tokenizers` also track offsets, which are not needed here, and some of them
//! panic. Only the ids before and after the text are kept, and for pairs of texts ids and types.

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
    /// The parts of a pair of texts; none if the template does not have it.
    pub(super) pair: Vec<Piece>,
}

/// A part of a pair of texts, and the type of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A special token.
    Token(TokenId, u8),
    /// The first text, or the second.
    Text(usize, u8),
}

impl Frame {
    pub(super) fn read(section: Option<&Value>) -> Result<Self, String> {
        let mut frame = Self::default();
        let steps = Steps::read(section, LIST, 1, |kind, value| {
            let frame = match kind {
                // It moves offsets.
                "ByteLevel" => None,
                "BertProcessing" | "RobertaProcessing" => {
                    Some(Self::of_bert(pair(value, "cls")?, pair(value, "sep")?, kind == "BertProcessing"))
                }
                "TemplateProcessing" => Some(Self::of_template(value)?),
                _ => return Err(unknown(LIST, kind)),
            };
            Ok((frame, 1))
        })?;
        // Without a template the second text follows the first.
        frame.pair = vec![Piece::Text(0, 0), Piece::Text(1, 1)];
        for step in steps.steps.into_iter().flatten() {
            // Each adds its tokens around the output of the previous one.
            frame.before.splice(0..0, step.before);
            frame.after.extend(step.after);
            frame.pair = step.pair;
        }
        check_number(frame.pair.len().max(frame.before.len() + frame.after.len()))?;
        Ok(frame)
    }

    /// The tokens of a pair of texts, with the type of each; none without a template.
    pub(super) fn pair(&self, texts: [&[TokenId]; 2]) -> Option<(Vec<TokenId>, Vec<u8>)> {
        let (mut tokens, mut types) = (Vec::new(), Vec::new());
        for piece in &self.pair {
            let own = match *piece {
                Piece::Token(token, own) => {
                    tokens.push(token);
                    own
                }
                Piece::Text(index, own) => {
                    tokens.extend_from_slice(texts.get(index)?);
                    own
                }
            };
            types.resize(tokens.len(), own);
        }
        (!tokens.is_empty()).then_some((tokens, types))
    }

    /// `[CLS] A [SEP] B [SEP]` with types for BERT, `<s> A </s></s> B </s>` without for RoBERTa.
    fn of_bert(cls: TokenId, sep: TokenId, is_bert: bool) -> Self {
        let second = u8::from(is_bert);
        let mut pair = vec![Piece::Token(cls, 0), Piece::Text(0, 0), Piece::Token(sep, 0)];
        pair.extend((!is_bert).then_some(Piece::Token(sep, 0)));
        pair.extend([Piece::Text(1, second), Piece::Token(sep, second)]);
        Self { before: vec![cls], after: vec![sep], pair }
    }

    /// The template for one text: special tokens, the text, special tokens; and that for a pair of texts, none if it
    /// does not have each of them once.
    fn of_template(value: &Value) -> Result<Self, String> {
        let is_text = |piece: &Piece| matches!(piece, Piece::Text(..));
        let single = pieces(value, "single")?;
        let at = single.iter().position(is_text).ok_or("a template has no place for the text")?;
        if !matches!(single[at], Piece::Text(0, _)) || single[at + 1..].iter().any(is_text) {
            return Err("a template for one text has another, or has it twice".to_owned());
        }
        let id = |piece: &Piece| if let Piece::Token(id, _) = *piece { Some(id) } else { None };
        let (before, after) = single.split_at(at);
        let mut pair = pieces(value, "pair")?;
        let count =
            |index| pair.iter().filter(|piece| matches!(piece, Piece::Text(own, _) if *own == index)).count();
        if [count(0), count(1)] != [1, 1] {
            pair.clear();
        }
        let (before, after) = (before.iter().filter_map(id).collect(), after.iter().filter_map(id).collect());
        Ok(Self { before, after, pair })
    }
}

fn check_number(tokens: usize) -> Result<(), String> {
    if tokens > MOST_TOKENS {
        return Err(format!("more than {MOST_TOKENS} special tokens are added to a text"));
    }
    Ok(())
}

/// The pieces of a template in the field `name` of `value`.
fn pieces(value: &Value, name: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    for piece in value.get(name).and_then(Value::as_array).into_iter().flatten() {
        let own = |part: &Value| {
            let own = part.get("type_id").and_then(Value::as_u64).unwrap_or_default();
            u8::try_from(own).map_err(|_| "the type of a token is larger than 255".to_owned())
        };
        if let Some(sequence) = piece.get("Sequence") {
            pieces.push(Piece::Text(usize::from(text(sequence, "id")? != "A"), own(sequence)?));
            continue;
        }
        let token = piece.get("SpecialToken").ok_or("a piece of a template is unknown")?;
        let own = own(token)?;
        pieces.extend(special(value, token)?.into_iter().map(|id| Piece::Token(id, own)));
        // Each piece may name a token with many ids.
        check_number(pieces.len())?;
    }
    Ok(pieces)
}

/// The ids of the special token that a piece of the template in `value` names.
fn special(value: &Value, piece: &Value) -> Result<Vec<TokenId>, String> {
    let token = value.get("special_tokens").and_then(|tokens| tokens.get(text(piece, "id").ok()?));
    let ids = token.and_then(|token| token.get("ids")).and_then(Value::as_array);
    ids.ok_or("a template names a token without ids")?.iter().map(id).collect()
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
        let expected = Frame { before: vec![1, 7], after: vec![2], pair: Vec::new() };
        assert_eq!(Frame::read(Some(&template)).unwrap(), expected);
        let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": true}, template]});
        assert_eq!(Frame::read(Some(&sequence)).unwrap(), expected);
        let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]});
        let frame = Frame::read(Some(&bert)).unwrap();
        assert_eq!((&frame.before[..], &frame.after[..]), (&[101][..], &[102][..]));
        let (tokens, types) = frame.pair([&[7, 8], &[9]]).unwrap();
        assert_eq!((&tokens[..], &types[..]), (&[101, 7, 8, 102, 9, 102][..], &[0, 0, 0, 0, 1, 1][..]));
        let roberta = json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]});
        let (tokens, types) = Frame::read(Some(&roberta)).unwrap().pair([&[7], &[9]]).unwrap();
        assert_eq!((&tokens[..], &types[..]), (&[0, 7, 2, 2, 9, 2][..], &[0; 6][..]));
        let level = json!({"type": "ByteLevel", "trim_offsets": true});
        for plain in [None, Some(&level)] {
            let frame = Frame::read(plain).unwrap();
            assert!(frame.before.is_empty() && frame.after.is_empty());
            assert_eq!(frame.pair([&[7, 8], &[9]]), Some((vec![7, 8, 9], vec![0, 0, 1])));
        }
    }

    #[test]
    fn pairs_of_gguf_files_stand_as_in_their_originals() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/gguf-tokenizers");
        let made = std::fs::read(format!("{folder}/encoders.json")).unwrap();
        let made: Value = serde_json::from_slice(&made).unwrap();
        for (name, cases) in made.as_object().unwrap() {
            let tokenizer = crate::Tokenizer::open(format!("{folder}/{name}.gguf")).unwrap();
            let (tokens, types) = tokenizer.encode_pair("Hello, world!", "naïve café", 512).unwrap();
            assert_eq!(json!({"ids": tokens, "types": types}), cases["pair"], "{name}");
        }
    }
}
