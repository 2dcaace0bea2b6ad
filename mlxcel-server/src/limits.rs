//! What one request may ask for at most: all bounds, in one place.

use std::time::Duration;

/// The bounds of requests.
///
/// The work and memory of a request are proportional to these; between requests and clients, threads and
/// sequences are divided fairly (see [`Client`](crate::Client)). Change single fields of [`Limits::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of tokens of an answer; defaults to the model's context.
    pub answer_tokens: Option<usize>,
    /// The time of a request, waiting included.
    pub time: Duration,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Answers of a chat, and of each prompt of a completion (`n`).
    pub choices: u32,
    /// Prompts of a completion.
    pub prompts: usize,
    /// Answers of a completion: prompts × `n`.
    pub rows: usize,
    /// Stop strings.
    pub stops: usize,
    /// Bytes of all stop strings. Each answer searches for them.
    pub stop_bytes: usize,
    /// Entries of `logit_bias`, which each step of each answer applies.
    pub biases: usize,
    /// Alternatives of each token of a completion.
    pub logprobs: u16,
    /// Alternatives of each token of a chat.
    pub top_logprobs: u16,
    /// Messages of a chat.
    pub messages: usize,
    /// Tools of a chat.
    pub tools: usize,
    /// Texts of a request for embeddings, and documents of one to rerank.
    pub texts: usize,
}

impl Default for Limits {
    /// Those of OpenAI's API, or wider, with 10 minutes and 1 MiB for a request.
    fn default() -> Self {
        Self {
            answer_tokens: None,
            time: Duration::from_secs(600),
            body_bytes: 1 << 20,
            choices: 16,
            prompts: 64,
            rows: 64,
            stops: 16,
            stop_bytes: 16 << 10,
            biases: 1024,
            logprobs: 5,
            top_logprobs: 20,
            messages: 4096,
            tools: 128,
            texts: 2048,
        }
    }
}
