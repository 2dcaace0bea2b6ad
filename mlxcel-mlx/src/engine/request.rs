//! Requests of sessions to the engine's thread, and its replies.

use mlxcel_core::{Error, Result, RowResult, SamplingPlan, TokenId, TokenMask};

/// The number of a KV cache on the engine's thread; none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CacheId(pub(super) u64);

/// One pass over the weights: some tokens of each of several sequences.
#[derive(Debug)]
pub(super) struct PassRequest {
    pub(super) rows: Vec<RowRequest>,
}

/// The part of one sequence in a pass.
#[derive(Debug)]
pub(super) struct RowRequest {
    pub(super) cache: CacheId,
    /// Where its first token goes.
    pub(super) position: usize,
    /// The length of the sequence by which rotary embeddings are chosen: one at which it is computed as it is at the row's end.
    pub(super) length: usize,
    pub(super) tokens: Vec<TokenId>,
    /// How many positions the sequence has room for.
    pub(super) capacity: usize,
    pub(super) output: Output,
}

/// What is wanted after a row's tokens.
#[derive(Debug)]
pub(super) enum Output {
    Nothing,
    Token(Box<Choice>),
    Logits,
    /// The tokens that follow the row's last tokens, as many as there are choices.
    Tokens(Vec<Choice>),
    /// The logits after this many of the row's last tokens.
    LogitsEach(usize),
    /// Results at each of the row's tokens.
    Every {
        top: u16,
        /// The token behind the row's last, where it is known.
        following: Option<TokenId>,
    },
    /// The sum of the hidden states of the row's tokens.
    HiddenSum,
    /// The hidden state of its last token.
    Hidden,
}

impl Output {
    /// The choices of tokens that follow the row's last ones.
    pub(super) fn choices(&self) -> &[Choice] {
        match self {
            Self::Token(choice) => std::slice::from_ref(choice),
            Self::Tokens(choices) => choices,
            _ => &[],
        }
    }

    /// How many of the row's last tokens the logits are read after.
    pub(super) fn logits(&self) -> usize {
        match self {
            Self::Logits => 1,
            Self::LogitsEach(count) => *count,
            _ => 0,
        }
    }
}

/// How to choose a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) plan: SamplingPlan,
    pub(super) mask: Option<TokenMask>,
    pub(super) top: u16,
    /// Which tokens the sequence holds and how often each was generated, where the plan has penalties.
    pub(super) history: Vec<Occurrence>,
}

/// A token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub(super) token: TokenId,
    /// How often it was generated; 0 where it was only given.
    pub(super) generated: u32,
}

/// What a pass gave.
#[derive(Debug, Default)]
pub(super) struct PassReply {
    /// One answer a row.
    pub(super) rows: Vec<RowReply>,
    pub(super) uploaded_bytes: u64,
    pub(super) read_back_bytes: u64,
}

/// What one row gave.
#[derive(Debug)]
pub(super) struct RowReply {
    /// What its tokens say, [`RowResult::Extended`] for [`Output::Nothing`] and the sum itself for
    /// [`Output::HiddenSum`]; an error if that is NaN; the cache is then lost
    /// then.
    pub(super) answer: Result<RowResult>,
    /// The bytes that its cache takes now.
    pub(super) kv_bytes: u64,
}

/// Why a pass gave nothing.
#[derive(Debug)]
pub(super) struct PassFailure {
    pub(super) error: Error,
    /// Whether the sequences are as they were before.
    pub(super) harmless: bool,
}
