//! Requests of sessions to the engine's thread, and its replies.

use mlxcel_core::{Error, Result, RowResult, SamplingPlan, TokenId, TokenMask};

/// The id of a KV cache on the engine's thread; never reused.
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
    /// The position of its first token.
    pub(super) position: usize,
    /// The sequence length that selects rotary embeddings: one with the same embeddings as the length at the
    /// row's end.
    pub(super) length: usize,
    pub(super) tokens: Vec<TokenId>,
    /// The types of its tokens; empty if all are 0.
    pub(super) types: Vec<u8>,
    /// The hidden states that a draft head reads beside its tokens (`[tokens, hidden]`); empty for other
    /// models.
    pub(super) input_states: Vec<f32>,
    /// The capacity of the sequence in positions.
    pub(super) capacity: usize,
    /// The slot of the sequence's adapter, if it has one.
    pub(super) adapter: Option<usize>,
    pub(super) earlier: Earlier,
    pub(super) output: Output,
    /// How many of its last tokens return their hidden states, whatever the output.
    pub(super) output_states: usize,
}

impl RowRequest {
    /// How many of the row's last tokens the logits are read after.
    pub(super) fn logits(&self) -> usize {
        match self.output {
            Output::Logits(count) | Output::Likelihoods { count, .. } => count,
            _ => 0,
        }
    }
}

/// What becomes of the states from before a pass, which the sequence may return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// Those of this pass are kept, for a row that ends at this position.
    Keep { end: usize },
    /// Those of an earlier pass are still kept.
    Leave,
    /// None are kept.
    Drop,
}

/// The results wanted after a row's tokens.
#[derive(Debug)]
pub(super) enum Output {
    Nothing,
    /// The tokens after the row's last tokens, one per choice.
    Tokens(Vec<Choice>),
    /// The logits after this many of the row's last tokens.
    Logits(usize),
    /// Likelihoods at this many of the row's last tokens.
    Likelihoods {
        count: usize,
        top: u16,
        /// The token after the row's last, if known.
        following: Option<TokenId>,
    },
    /// The sum of the hidden states of this many of the row's last tokens.
    Hidden(usize),
    /// The hidden state of each of this many of the row's last tokens.
    EachHidden(usize),
    /// The hidden state of the row's first token.
    FirstHidden,
}

impl Output {
    /// How many hidden states are read.
    pub(super) fn hidden(&self) -> usize {
        match self {
            Self::Hidden(count) | Self::EachHidden(count) => *count,
            Self::FirstHidden => 1,
            Self::Nothing | Self::Tokens(_) | Self::Logits(_) | Self::Likelihoods { .. } => 0,
        }
    }

    /// The choices of tokens that follow the row's last ones.
    pub(super) fn choices(&self) -> &[Choice] {
        match self {
            Self::Tokens(choices) => choices,
            _ => &[],
        }
    }

    /// The choice of the one token that is all that is wanted.
    pub(super) fn only_choice(&self) -> Option<&Choice> {
        match self.choices() {
            [choice] => Some(choice),
            _ => None,
        }
    }
}

/// How to choose a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) plan: SamplingPlan,
    pub(super) mask: Option<TokenMask>,
    pub(super) top: u16,
    /// The tokens of the sequence and how often each was generated, if the plan has penalties.
    pub(super) history: Vec<Occurrence>,
}

/// A token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub(super) token: TokenId,
    /// How often it was generated; 0 if it is only in the prompt.
    pub(super) generated: u32,
}

/// The results of a pass.
#[derive(Debug, Default)]
pub(super) struct PassReply {
    /// One reply per row.
    pub(super) rows: Vec<RowReply>,
    pub(super) uploaded_bytes: u64,
    pub(super) read_back_bytes: u64,
}

/// The result of one row.
#[derive(Debug)]
pub(super) struct RowReply {
    /// The result of its tokens, [`RowResult::Extended`] for [`Output::Nothing`] and the sum itself for
    /// [`Output::Hidden`]. After an error the cache is lost: the result is NaN, or a look-ahead pass failed.
    pub(super) answer: Result<RowResult>,
    /// The hidden states of its [`RowRequest::output_states`], `[tokens, hidden]`.
    pub(super) states: Vec<f32>,
    /// The current bytes of its cache.
    pub(super) kv_bytes: u64,
}

/// Why a pass failed.
#[derive(Debug)]
pub(super) struct PassFailure {
    pub(super) error: Error,
    /// Whether the sequences are unchanged.
    pub(super) harmless: bool,
}
