//! Log probabilities in the API's format.

use mlxcel_session::{RequestStream, TokenId, TokenLogprob, Tokenizer};
use serde::Serialize;

/// A token in a chat answer.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprob {
    #[serde(flatten)]
    token: NamedLogprob,
    top_logprobs: Vec<NamedLogprob>,
}

#[derive(Debug, Serialize)]
struct NamedLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// The tokens of a text completion.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    /// The first token of a prompt has none.
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds a token at character `offset`, and moves that behind it.
    fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: TokenId,
        logprob: Option<f32>,
        top: &[TokenLogprob],
        offset: &mut usize,
    ) {
        let name = named(tokenizer, token, logprob.unwrap_or_default()).token;
        self.text_offset.push(*offset);
        *offset += name.chars().count();
        self.tokens.push(name);
        self.token_logprobs.push(logprob);
        let top = top.iter().map(|top| (named(tokenizer, top.token, top.logprob).token, top.logprob.into()));
        self.top_logprobs.push(logprob.map(|_| top.collect()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Where the text of its tokens ends, in characters.
    pub(crate) fn end(&self) -> usize {
        let last = self.tokens.last().map_or(0, |token| token.chars().count());
        self.text_offset.last().map_or(0, |offset| offset + last)
    }

    /// It, and the tokens behind it.
    pub(crate) fn followed_by(mut self, other: Self) -> Self {
        self.tokens.extend(other.tokens);
        self.token_logprobs.extend(other.token_logprobs);
        self.top_logprobs.extend(other.top_logprobs);
        self.text_offset.extend(other.text_offset);
        self
    }
}

pub(crate) fn of_prompt(
    tokenizer: &Tokenizer,
    tokens: &[TokenId],
    logprobs: &[Option<f32>],
    top: &[Vec<TokenLogprob>],
) -> TextLogprobs {
    let tops = top.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
    let (mut of_prompt, mut offset) = (TextLogprobs::default(), 0);
    for ((&token, &logprob), top) in tokens.iter().zip(logprobs).zip(tops) {
        of_prompt.push(tokenizer, token, logprob, top, &mut offset);
    }
    of_prompt
}

/// Those of `stream` from its token number `from` on.
pub(crate) fn of_chat(tokenizer: &Tokenizer, stream: &RequestStream, from: usize) -> Vec<ChatLogprob> {
    tokens(stream, from)
        .map(|(token, logprob, top)| ChatLogprob {
            token: named(tokenizer, token, logprob),
            top_logprobs: top.iter().map(|top| named(tokenizer, top.token, top.logprob)).collect(),
        })
        .collect()
}

/// Those of `stream` from its token number `from` on; the first begins at character `offset` of the text.
pub(crate) fn of_text(
    tokenizer: &Tokenizer,
    stream: &RequestStream,
    from: usize,
    offset: &mut usize,
) -> TextLogprobs {
    let mut logprobs = TextLogprobs::default();
    for (token, logprob, top) in tokens(stream, from) {
        logprobs.push(tokenizer, token, Some(logprob), top, offset);
    }
    logprobs
}

fn tokens(stream: &RequestStream, from: usize) -> impl Iterator<Item = (TokenId, f32, &[TokenLogprob])> {
    let tops = stream.top_logprobs().iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
    let all = stream.tokens().iter().zip(stream.logprobs()).zip(tops);
    all.skip(from).map(|((&token, &logprob), top)| (token, logprob, top))
}

fn named(tokenizer: &Tokenizer, token: TokenId, logprob: f32) -> NamedLogprob {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    // JSON has no minus infinity.
    let logprob = logprob.max(-9999.0);
    NamedLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
}
