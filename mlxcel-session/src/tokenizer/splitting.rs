//! The sections `pre_tokenizer` and `decoder`.

use serde_json::Value;
use tokenizers::{Decoder, DecoderWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::bytes;
use super::steps::{MOST_GROWTH, Steps, growth_of_replacement, parse, pattern, text, unknown};

const PRE_TOKENIZERS: &str = "pretokenizers";
const DECODERS: &str = "decoders";

/// How many times as long decoders may make a text.
const MOST_DECODED: usize = 64;

/// How a text is split into words.
pub(super) struct PreTokenizers(Vec<PreTokenizerWrapper>);

impl PreTokenizers {
    /// The steps of the section, if it has any, and how much they make a text grow.
    pub(super) fn read(section: Option<&Value>) -> Result<(Option<Self>, usize), String> {
        let steps = Steps::read(section, PRE_TOKENIZERS, MOST_GROWTH, |kind, value| {
            let growth = match kind {
                "ByteLevel" => 2,
                // A three-byte character instead of each space, and one before each part.
                "Metaspace" => 4,
                "Split" => {
                    pattern(value)?;
                    1
                }
                "FixedLength" => {
                    if value.get("length").is_some_and(|length| length.as_u64() == Some(0)) {
                        return Err("parts of a fixed length have none".to_owned());
                    }
                    1
                }
                "BertPreTokenizer" | "CharDelimiterSplit" | "Delimiter" | "Whitespace"
                | "WhitespaceSplit" | "Punctuation" | "Digits" | "UnicodeScripts" => 1,
                _ => return Err(unknown(PRE_TOKENIZERS, kind)),
            };
            Ok((parse(value)?, growth))
        })?;
        let growth = steps.growth;
        Ok((if steps.steps.is_empty() { None } else { Some(Self(steps.steps)) }, growth))
    }
}

impl PreTokenizer for PreTokenizers {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        self.0.iter().try_for_each(|step| step.pre_tokenize(text))
    }
}

/// How tokens become a text again.
pub(super) struct Decoders(Vec<Decode>);

enum Decode {
    Plain(DecoderWrapper),
    /// Strips a character from each token, at most so many times at the start and at the end.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

impl Decoders {
    /// The steps of the section, if it has any, and what they do to one token.
    pub(super) fn read(section: Option<&Value>) -> Result<(Option<Self>, Vec<bytes::Step>), String> {
        let mut of_token = Vec::new();
        let steps = Steps::read(section, DECODERS, MOST_DECODED, |kind, value| {
            of_token.extend(bytes::step(kind, value));
            let growth = match kind {
                "Strip" => {
                    let mut content = text(value, "content")?.chars();
                    let (Some(content), None) = (content.next(), content.next()) else {
                        return Err("what is stripped is not one character".to_owned());
                    };
                    let count = |field| {
                        let count = value.get(field).and_then(Value::as_u64);
                        count.and_then(|count| usize::try_from(count).ok()).ok_or("a strip step has no count")
                    };
                    return Ok((Decode::Strip { content, start: count("start")?, stop: count("stop")? }, 1));
                }
                "Replace" => growth_of_replacement(&pattern(value)?, text(value, "content")?),
                "BPEDecoder" | "BPE" | "WordPiece" | "CTC" => 2,
                "ByteLevel" | "Metaspace" | "ByteFallback" | "Fuse" => 1,
                _ => return Err(unknown(DECODERS, kind)),
            };
            Ok((Decode::Plain(parse(value)?), growth))
        })?;
        Ok((if steps.steps.is_empty() { None } else { Some(Self(steps.steps)) }, of_token))
    }
}

impl Decoder for Decoders {
    fn decode_chain(&self, mut tokens: Vec<String>) -> tokenizers::Result<Vec<String>> {
        for step in &self.0 {
            tokens = match step {
                // One of the crate's decoders counts on a token.
                _ if tokens.is_empty() => return Ok(tokens),
                Decode::Plain(decoder) => decoder.decode_chain(tokens)?,
                Decode::Strip { content, start, stop } => {
                    tokens.iter().map(|token| stripped(token, *content, *start, *stop).to_owned()).collect()
                }
            };
        }
        Ok(tokens)
    }
}

/// `token` without up to `start` times `content` at its beginning, and `stop` times at its end.
fn stripped(mut token: &str, content: char, start: usize, stop: usize) -> &str {
    for _ in 0..start {
        let Some(rest) = token.strip_prefix(content) else { break };
        token = rest;
    }
    for _ in 0..stop {
        let Some(rest) = token.strip_suffix(content) else { break };
        token = rest;
    }
    token
}
