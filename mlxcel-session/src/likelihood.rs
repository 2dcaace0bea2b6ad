//! Log likelihood of given continuations of a prompt.

use mlxcel_core::{CancelToken, Error, ErrorKind, PositionResult, Result, SequenceId, TokenId};

use crate::model::Model;
use crate::score::Scorer;
use crate::texts::only;

const OPERATION: &str = "score continuations";

/// The log likelihood of a continuation after its prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ContinuationScore {
    /// The tokens of the continuation.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each token, given the prompt and the tokens before it.
    pub logprobs: Vec<f32>,
    /// Whether every token is the most likely one at its position, so that greedy decoding generates this
    /// continuation.
    pub is_greedy: bool,
}

impl ContinuationScore {
    /// The log probability of the continuation: the sum over its tokens.
    pub fn logprob(&self) -> f64 {
        self.logprobs.iter().copied().map(f64::from).sum()
    }

    fn new(tokens: &[TokenId], positions: &[PositionResult]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            logprobs: positions.iter().map(|position| position.following.unwrap_or(f32::NAN)).collect(),
            is_greedy: tokens.iter().zip(positions).all(|(&token, position)| position.best.token == token),
        }
    }
}

impl Model {
    /// Scores each of `continuations` after `prompt`, in order, as multiple-choice benchmarks do.
    ///
    /// Tokenization follows EleutherAI's lm-evaluation-harness: white space at the end of the prompt moves to
    /// the continuations; prompt and continuation are encoded together, and the tokens after as many as
    /// the prompt has alone belong to the continuation. The tokenizer's leading special tokens (such as
    /// BOS) are added to the prompt, which may be empty if there are any. The prompt is computed once if
    /// the engine claims fork or rewind; with fork, continuations are batched. Needs the same
    /// capabilities as [`score`](Self::score).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer, and the errors of
    /// [`likelihood_of_tokens`](Self::likelihood_of_tokens).
    pub fn likelihood(
        &self,
        prompt: &str,
        continuations: &[impl AsRef<str>],
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<ContinuationScore>> {
        let tokenizer = self.tokenizer()?;
        let (prompt, space) = prompt.split_at(prompt.trim_end().len());
        let alone = tokenizer.encode(prompt, false)?;
        let encode = |continuation: &str| -> Result<Vec<TokenId>> {
            let mut together = tokenizer.encode(&format!("{prompt}{space}{continuation}"), false)?;
            Ok(together.split_off(alone.len().min(together.len())))
        };
        let continuations = continuations.iter().map(|text| encode(text.as_ref()));
        let continuations = continuations.collect::<Result<Vec<_>>>()?;
        let prompt = [tokenizer.tokens_before(), &alone].concat();
        self.likelihood_of_tokens(&prompt, &continuations, cancel)
    }

    /// As [`likelihood`](Self::likelihood), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an empty prompt, an empty continuation or a token outside the
    /// vocabulary, [`ErrorKind::CapacityExceeded`] if prompt and continuation do not fit into the context
    /// (nothing is truncated), [`ErrorKind::Unsupported`] if the engine claims neither `every_position`
    /// nor `logits`, [`ErrorKind::Cancelled`], and errors of the engine.
    pub fn likelihood_of_tokens(
        &self,
        prompt: &[TokenId],
        continuations: &[Vec<TokenId>],
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<ContinuationScore>> {
        let refused = |kind, message: &'static str| Error::new(kind, OPERATION, message);
        let Some((&last, before)) = prompt.split_last() else {
            let message = "the prompt is empty, and the tokenizer adds no leading token";
            return Err(refused(ErrorKind::InvalidInput, message));
        };
        if continuations.iter().any(Vec::is_empty) {
            return Err(refused(ErrorKind::InvalidInput, "a continuation has no tokens of its own"));
        }
        let longest = continuations.iter().map(Vec::len).max().unwrap_or_default();
        let (tokens, context) = (prompt.len() + longest, self.capabilities().context);
        if tokens > context {
            let message = "prompt and continuation do not fit into the context";
            return Err(refused(ErrorKind::CapacityExceeded, message)
                .with_context("tokens", tokens)
                .with_context("context", context));
        }
        // The prompt's last token says what the first of a continuation is worth.
        let rows: Vec<Vec<TokenId>> =
            continuations.iter().map(|tokens| [&[last], &tokens[..]].concat()).collect();
        let scorer = Scorer::new(self, 0, cancel.cloned())?;
        let scored = Shared { scorer, before, base: None }.score(&rows)?;
        let scores = continuations.iter().zip(&scored);
        Ok(scores.map(|(tokens, positions)| ContinuationScore::new(tokens, positions)).collect())
    }
}

/// Rows that are scored behind the same tokens.
struct Shared<'a> {
    scorer: Scorer,
    before: &'a [TokenId],
    /// The sequence that holds those tokens, once there is one.
    base: Option<SequenceId>,
}

impl Shared<'_> {
    fn score(mut self, rows: &[Vec<TokenId>]) -> Result<Vec<Vec<PositionResult>>> {
        let claimed = self.scorer.session.capabilities().clone();
        // A fork takes a place beside its source.
        let together = if claimed.fork { claimed.sequences.saturating_sub(1).min(rows.len()) } else { 0 };
        if together == 0 {
            return rows.iter().map(|row| self.score_alone(row, claimed.rewind)).collect();
        }
        let base = self.base()?;
        let mut scored = Vec::with_capacity(rows.len());
        for rows in rows.chunks(together) {
            let forks = rows.iter().map(|row| Ok((self.scorer.session.fork(base)?, &row[..])));
            let forks = forks.collect::<Result<Vec<_>>>()?;
            scored.extend(self.scorer.score(&forks)?);
            for (fork, _) in forks {
                self.scorer.session.close(fork)?;
            }
        }
        Ok(scored)
    }

    /// Scores a row on the base sequence, which is rewound afterwards or closed.
    fn score_alone(&mut self, row: &[TokenId], rewinds: bool) -> Result<Vec<PositionResult>> {
        let base = self.base()?;
        let scored = only(self.scorer.score(&[(base, row)])?)?;
        if rewinds {
            self.scorer.session.rewind(base, self.before.len())?;
        } else {
            self.scorer.session.close(base)?;
            self.base = None;
        }
        Ok(scored)
    }

    fn base(&mut self) -> Result<SequenceId> {
        if let Some(base) = self.base {
            return Ok(base);
        }
        let base = self.scorer.session.open()?;
        self.scorer.extend(base, self.before)?;
        self.base = Some(base);
        Ok(base)
    }
}
