//! What one request may ask for at most: all bounds of its fields, in one place. What a request takes is in proportion to
//! these; between requests and clients, threads and sequences are divided fairly (`work`, `Request::share`).

/// Answers of a chat, and of each prompt of a completion (`n`).
pub(crate) const CHOICES: u32 = 16;
/// Prompts of a completion.
pub(crate) const PROMPTS: usize = 64;
/// Answers of a completion: prompts × `n`.
pub(crate) const ROWS: usize = 64;
/// Stop strings, as in OpenAI's API.
pub(crate) const STOPS: usize = 16;
/// Bytes of all stop strings. Each answer searches for them.
pub(crate) const STOP_BYTES: usize = 16 << 10;
/// Entries of `logit_bias`, which each step of each answer applies.
pub(crate) const BIASES: usize = 1024;
/// Alternatives of each token, as in OpenAI's API: of a completion, and of a chat.
pub(crate) const LOGPROBS: u16 = 5;
pub(crate) const TOP_LOGPROBS: u16 = 20;
/// Messages of a chat.
pub(crate) const MESSAGES: usize = 4096;
/// Tools of a chat.
pub(crate) const TOOLS: usize = 128;
/// Texts of a request for embeddings, as in OpenAI's API.
pub(crate) const TEXTS: usize = 2048;
/// Texts that are embedded before it is another client's turn.
pub(crate) const TEXTS_AT_ONCE: usize = 16;
