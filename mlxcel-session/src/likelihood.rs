//! How likely given continuations of a prompt are to a model.

use mlxcel_core::{CancelToken, Error, ErrorKind, PositionResult, Result, SequenceId, TokenId};

use crate::Model;
use crate::score::Scorer;

const OPERATION: &str = "score continuations";

/// How likely a continuation is after its prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ContinuationScore {
    /// The tokens of the continuation.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each after the prompt and those before it.
    pub logprobs: Vec<f32>,
    /// Whether each is the most likely token at its place, so that greedy decoding gives this continuation.
    pub is_greedy: bool,
}

impl ContinuationScore {
    /// The log probability of the continuation: the sum of those of its tokens.
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
    /// How likely each of `continuations` is after `prompt`, in their order: what multiple choice is decided by.
    ///
    /// The tokens are those of EleutherAI's lm-evaluation-harness: white space at the end of the prompt goes to the continuations;
    /// prompt and continuation are encoded together, and what is behind as many tokens as the prompt has alone is the
    /// continuation's. The tokens that the model wants in front of a text are put in front of the prompt, which may be empty
    /// where there are such. The prompt is computed once where the engine claims fork or rewind, and where it forks, continuations
    /// share steps. Needs what [`score`](Self::score) needs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer, and those of [`likelihood_of_tokens`](Self::likelihood_of_tokens).
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

    /// As [`likelihood`](Self::likelihood), of token ids as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an empty prompt, an empty continuation and a token beyond the vocabulary,
    /// [`ErrorKind::CapacityExceeded`] where prompt and continuation do not fit into the context: nothing is cut,
    /// [`ErrorKind::Unsupported`] where the engine gives neither results at every position nor logits, [`ErrorKind::Cancelled`], and
    /// those of the engine.
    pub fn likelihood_of_tokens(
        &self,
        prompt: &[TokenId],
        continuations: &[Vec<TokenId>],
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<ContinuationScore>> {
        let refuse = |kind, message: &'static str| Err(Error::new(kind, OPERATION, message));
        let Some((&last, before)) = prompt.split_last() else {
            return refuse(
                ErrorKind::InvalidInput,
                "the prompt has no tokens, and nothing else stands in front",
            );
        };
        if continuations.iter().any(Vec::is_empty) {
            return refuse(ErrorKind::InvalidInput, "a continuation has no tokens of its own");
        }
        let longest = continuations.iter().map(Vec::len).max().unwrap_or_default();
        if prompt.len() + longest > self.capabilities().context {
            return refuse(
                ErrorKind::CapacityExceeded,
                "prompt and continuation do not fit into the context",
            )
            .map_err(|error| {
                error
                    .with_context("tokens", prompt.len() + longest)
                    .with_context("context", self.capabilities().context)
            });
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
        let together = if claimed.fork { (claimed.sequences - 1).min(rows.len()) } else { 0 };
        if together == 0 {
            return rows.iter().map(|row| self.score_alone(row, claimed.rewind)).collect();
        }
        let base = self.base()?;
        let mut scored = Vec::with_capacity(rows.len());
        for rows in rows.chunks(together) {
            let forks = rows.iter().map(|row| Ok((self.scorer.session.fork(base)?, row.clone())));
            let forks = forks.collect::<Result<Vec<_>>>()?;
            scored.extend(self.scorer.score_together(&forks)?);
            for (fork, _) in forks {
                self.scorer.session.close(fork)?;
            }
        }
        Ok(scored)
    }

    /// Scores a row on the base, which goes back afterwards or is given up.
    fn score_alone(&mut self, row: &[TokenId], rewinds: bool) -> Result<Vec<PositionResult>> {
        let base = self.base()?;
        let scored = self.scorer.score(base, row)?;
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
