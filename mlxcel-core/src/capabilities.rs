//! The capabilities of an engine, as data.

use std::fmt;

use crate::{Error, Result, SamplingFields};

/// What an engine supports for a model, known before a session is opened.
///
/// A claimed capability works; an unclaimed one returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported). A
/// wrapper or a test can withdraw capabilities with the same `with_` methods.
///
/// ```
/// use mlxcel_core::Capabilities;
///
/// let capabilities = Capabilities::new(4, 1024).with_logits(true).with_rewind(true);
/// assert_eq!(capabilities.to_string(), "sequences 4, batch rows 1, context 1024, logits, rewind");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The maximum number of open sequences per session.
    pub sequences: usize,
    /// The maximum number of rows per pass over the weights. With 1, every row takes its own pass.
    pub batch_rows: usize,
    /// The maximum number of tokens per sequence.
    pub context: usize,
    /// The maximum number of tokens of one row per pass over the weights; [`usize::MAX`] for no limit. A longer row
    /// takes several passes, and a step returns when all of its rows are done. So a scheduler feeds long prompts in
    /// rows of this many tokens, to keep other rows from waiting for the whole prompt.
    pub prompt_chunk: usize,
    /// [`Answer::Logits`](crate::Answer::Logits) works.
    pub logits: bool,
    /// The largest `top` of [`Answer::Token`](crate::Answer::Token) and [`Answer::Likelihoods`](crate::Answer::Likelihoods):
    /// how many of the most likely tokens can be reported.
    pub top_logprobs: u16,
    /// [`Answer::Likelihoods`](crate::Answer::Likelihoods) works.
    pub every_position: bool,
    /// [`Positions::Drafts`](crate::Positions::Drafts) works with everything that is claimed for tokens, and with
    /// [`logits`](Self::logits) for logits: one pass verifies several draft tokens.
    pub verification: bool,
    /// [`Answer::Hidden`](crate::Answer::Hidden) works and returns vectors of this many elements; `None` if unsupported.
    pub hidden_states: Option<usize>,
    /// A [`TokenMask`](crate::TokenMask) is honoured.
    pub token_masks: bool,
    /// [`InferenceSession::rewind`](crate::InferenceSession::rewind) works.
    pub rewind: bool,
    /// [`InferenceSession::fork`](crate::InferenceSession::fork) works.
    pub fork: bool,
    /// [`InferenceSession::snapshot`](crate::InferenceSession::snapshot) and
    /// [`restore`](crate::InferenceSession::restore) work.
    pub snapshot: bool,
    /// The most bytes that the [payload](crate::Snapshot::payload) of a snapshot has, which is that of a sequence of
    /// [`context`](Self::context) tokens: what reads snapshots from a place that it does not trust reads no more. None where it is not
    /// known.
    pub snapshot_bytes: Option<u64>,
    /// A sequence's results are bitwise equal for any batch composition and any prefill chunking.
    pub bitwise_batch_invariance: bool,
    /// The sampling fields that the engine applies itself, beyond greedy decoding.
    pub sampling: SamplingFields,
}

impl Capabilities {
    /// The minimum: `sequences` sequences of up to `context` tokens, one row per pass, greedy decoding, no optional
    /// capability.
    pub fn new(sequences: usize, context: usize) -> Self {
        Self {
            sequences,
            batch_rows: 1,
            context,
            prompt_chunk: usize::MAX,
            logits: false,
            top_logprobs: 0,
            every_position: false,
            verification: false,
            hidden_states: None,
            token_masks: false,
            rewind: false,
            fork: false,
            snapshot: false,
            snapshot_bytes: None,
            bitwise_batch_invariance: false,
            sampling: SamplingFields::NONE,
        }
    }

    /// Sets the maximum number of rows per pass over the weights.
    #[must_use]
    pub fn with_batch_rows(mut self, rows: usize) -> Self {
        self.batch_rows = rows;
        self
    }

    /// Sets the maximum number of tokens of one row per pass; at least 1.
    #[must_use]
    pub fn with_prompt_chunk(mut self, tokens: usize) -> Self {
        self.prompt_chunk = tokens;
        self
    }

    /// Claims, or withdraws, logits.
    #[must_use]
    pub fn with_logits(mut self, claimed: bool) -> Self {
        self.logits = claimed;
        self
    }

    /// Sets how many of the most likely tokens can be reported.
    #[must_use]
    pub fn with_top_logprobs(mut self, most: u16) -> Self {
        self.top_logprobs = most;
        self
    }

    /// Claims, or withdraws, results at every position.
    #[must_use]
    pub fn with_every_position(mut self, claimed: bool) -> Self {
        self.every_position = claimed;
        self
    }

    /// Claims, or withdraws, the verification of draft tokens.
    #[must_use]
    pub fn with_verification(mut self, claimed: bool) -> Self {
        self.verification = claimed;
        self
    }

    /// Claims hidden states of this many elements, or withdraws them.
    #[must_use]
    pub fn with_hidden_states(mut self, elements: Option<usize>) -> Self {
        self.hidden_states = elements;
        self
    }

    /// Claims, or withdraws, token masks.
    #[must_use]
    pub fn with_token_masks(mut self, claimed: bool) -> Self {
        self.token_masks = claimed;
        self
    }

    /// Claims, or withdraws, rewind.
    #[must_use]
    pub fn with_rewind(mut self, claimed: bool) -> Self {
        self.rewind = claimed;
        self
    }

    /// Claims, or withdraws, fork.
    #[must_use]
    pub fn with_fork(mut self, claimed: bool) -> Self {
        self.fork = claimed;
        self
    }

    /// Claims, or withdraws, snapshot and restore.
    #[must_use]
    pub fn with_snapshot(mut self, claimed: bool) -> Self {
        self.snapshot = claimed;
        self
    }

    /// Sets the most bytes that the payload of a snapshot has.
    #[must_use]
    pub fn with_snapshot_bytes(mut self, most: Option<u64>) -> Self {
        self.snapshot_bytes = most;
        self
    }

    /// Claims, or withdraws, bitwise batch invariance.
    #[must_use]
    pub fn with_bitwise_batch_invariance(mut self, claimed: bool) -> Self {
        self.bitwise_batch_invariance = claimed;
        self
    }

    /// Sets the sampling fields that the engine applies itself.
    #[must_use]
    pub fn with_sampling(mut self, fields: SamplingFields) -> Self {
        self.sampling = fields;
        self
    }

    /// The intersection of these capabilities and `most`, with the smaller of each limit: for wrappers and tests that
    /// withdraw capabilities. The size of hidden states is not a limit and is kept.
    ///
    /// ```
    /// use mlxcel_core::Capabilities;
    ///
    /// let engine = Capabilities::new(4, 1024).with_logits(true).with_rewind(true);
    /// let most = Capabilities::new(8, 512).with_rewind(true).with_fork(true);
    /// assert_eq!(engine.limited_to(&most), Capabilities::new(4, 512).with_rewind(true));
    /// ```
    #[must_use]
    pub fn limited_to(&self, most: &Self) -> Self {
        Self {
            sequences: self.sequences.min(most.sequences),
            batch_rows: self.batch_rows.min(most.batch_rows),
            context: self.context.min(most.context),
            prompt_chunk: self.prompt_chunk.min(most.prompt_chunk),
            logits: self.logits && most.logits,
            top_logprobs: self.top_logprobs.min(most.top_logprobs),
            every_position: self.every_position && most.every_position,
            verification: self.verification && most.verification,
            hidden_states: self.hidden_states.filter(|_| most.hidden_states.is_some()),
            token_masks: self.token_masks && most.token_masks,
            rewind: self.rewind && most.rewind,
            fork: self.fork && most.fork,
            snapshot: self.snapshot && most.snapshot,
            // A longer context's is one for a shorter one too.
            snapshot_bytes: self.snapshot_bytes.filter(|_| most.snapshot),
            bitwise_batch_invariance: self.bitwise_batch_invariance && most.bitwise_batch_invariance,
            sampling: self.sampling.intersection(most.sampling),
        }
    }

    /// Returns an error that names `capability` unless it is `claimed`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    pub fn require(claimed: bool, operation: &'static str, capability: &'static str) -> Result<()> {
        if claimed { Ok(()) } else { Err(Self::unclaimed(operation, capability)) }
    }

    pub(crate) fn unclaimed(operation: &'static str, capability: &'static str) -> Error {
        Error::unsupported(operation, "the engine does not claim this capability")
            .with_context("capability", capability)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequences {}, batch rows {}, context {}", self.sequences, self.batch_rows, self.context)?;
        if self.prompt_chunk != usize::MAX {
            write!(f, ", prompt chunk {}", self.prompt_chunk)?;
        }
        if self.top_logprobs > 0 {
            write!(f, ", top logprobs {}", self.top_logprobs)?;
        }
        for (claimed, name) in [
            (self.logits, "logits"),
            (self.every_position, "every position"),
            (self.verification, "verification"),
            (self.hidden_states.is_some(), "hidden states"),
            (self.token_masks, "token masks"),
            (self.rewind, "rewind"),
            (self.fork, "fork"),
            (self.snapshot, "snapshot"),
            (self.bitwise_batch_invariance, "bitwise batch invariance"),
        ] {
            if claimed {
                write!(f, ", {name}")?;
            }
        }
        if self.sampling != SamplingFields::NONE {
            write!(f, ", device sampling ({})", self.sampling)?;
        }
        Ok(())
    }
}
