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
#[derive(Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
    text_offset: Vec<usize>,
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
        let name = named(tokenizer, token, logprob).token;
        logprobs.text_offset.push(*offset);
        *offset += name.chars().count();
        logprobs.tokens.push(name);
        logprobs.token_logprobs.push(logprob);
        let top = top.iter().map(|top| (named(tokenizer, top.token, top.logprob).token, top.logprob.into()));
        logprobs.top_logprobs.push(top.collect());
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
