//! Scoring: log probabilities and perplexity of a text.

use mlxcel_core::{
    CancelToken, Capabilities, Distribution, Error, ErrorKind, InferenceSession, InferenceSessionExt,
    PositionResult, Result, Row, RowResult, SequenceId, SessionOptions, StepOutput, TokenId, TokenLogprob,
    Want,
};

use crate::model::Model;
use crate::texts::{self, TextAnswer, TextRow, control, only, wrong_kind};

const OPERATION: &str = "score text";

/// Options of scoring; start from [`ScoreOptions::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScoreOptions {
    /// How many of the most likely tokens are reported at each position; defaults to 0.
    pub top: u16,
    /// Whether the tokenizer's leading special tokens (such as BOS) are added; defaults to true. Trailing
    /// ones never are.
    pub special_tokens: bool,
    /// The stride, in tokens, of the window over a text longer than the context; defaults to half of the
    /// context.
    pub stride: Option<usize>,
    /// Cancels the computation at the next chunk.
    pub cancel: Option<CancelToken>,
}

impl Default for ScoreOptions {
    fn default() -> Self {
        Self { top: 0, special_tokens: true, stride: None, cancel: None }
    }
}

impl ScoreOptions {
    mlxcel_core::setters! {
        /// Sets how many of the most likely tokens are reported at each position.
        with_top(top: u16) => top = top;
        /// Sets whether the tokenizer's leading special tokens are added.
        with_special_tokens(special_tokens: bool) => special_tokens = special_tokens;
        /// Sets the stride, in tokens, of the window over a text longer than the context.
        with_stride(tokens: usize) => stride = Some(tokens);
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
    }
}

/// The log probabilities of a text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TextScore {
    /// The tokens of the text, including leading special tokens.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each token given those before it; `None` for the first.
    pub logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position, most likely first, [`ScoreOptions::top`] many; empty for the
    /// first.
    pub top: Vec<Vec<TokenLogprob>>,
}

impl TextScore {
    /// The log probability of the text: the sum over all tokens but the first.
    pub fn logprob(&self) -> f64 {
        self.logprobs.iter().flatten().map(|&logprob| f64::from(logprob)).sum()
    }

    /// The exponential of the mean negative log probability of a token, over all but the first.
    pub fn perplexity(&self) -> f64 {
        (-self.logprob() / self.logprobs.iter().flatten().count() as f64).exp()
    }
}

impl Model {
    /// The log probability of each token of `text`.
    ///
    /// The first token has no log probability. If the tokenizer adds a BOS token, that is the first one, and
    /// all of the text is scored. A text longer than the context is scored in sliding windows, as in
    /// Hugging Face's guide "Perplexity of fixed-length models": each window is as long as the context
    /// and begins [`stride`](ScoreOptions::stride) tokens after the previous one, and each token is
    /// scored in the first window that contains it. So outside the first window, every token is
    /// conditioned on at least context minus stride tokens. Needs [`Capabilities::every_position`], or
    /// [`Capabilities::logits`], which is slower: one token per pass.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer, and the errors of
    /// [`score_tokens`](Self::score_tokens).
    pub fn score(&self, text: &str, options: &ScoreOptions) -> Result<TextScore> {
        only(self.score_all(&[text], options)?)
    }

    /// As [`score`](Self::score) for several texts, in order. Each step computes as many texts as the engine
    /// has sequences ([`LoadOptions::sequences`](crate::LoadOptions::sequences)), and short texts share
    /// passes over the weights.
    ///
    /// # Errors
    ///
    /// The errors of [`score`](Self::score).
    pub fn score_all(&self, texts: &[impl AsRef<str>], options: &ScoreOptions) -> Result<Vec<TextScore>> {
        self.score_all_tokens(&self.encode_to_score(texts, options)?, options)
    }

    /// As [`score`](Self::score), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// The errors of [`score_all_tokens`](Self::score_all_tokens).
    pub fn score_tokens(&self, tokens: &[TokenId], options: &ScoreOptions) -> Result<TextScore> {
        only(self.score_all_tokens(&[tokens.to_vec()], options)?)
    }

    /// As [`score_all`](Self::score_all), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for fewer than two tokens, a token outside the vocabulary or a stride of
    /// the whole context, [`ErrorKind::Unsupported`] if the engine claims neither `every_position` nor
    /// `logits`, or fewer top log probabilities, [`ErrorKind::Cancelled`], and errors of the engine.
    pub fn score_all_tokens(&self, texts: &[Vec<TokenId>], options: &ScoreOptions) -> Result<Vec<TextScore>> {
        let rows = self.rows_to_score(texts, options)?;
        if self.capabilities().every_position {
            return scores(texts, &rows, texts::run(self, &rows, options.cancel.as_ref())?);
        }
        let mut scorer = Scorer::new(self, options.top, options.cancel.clone())?;
        let score = |row: &TextRow| {
            let sequence = scorer.session.open()?;
            scorer.extend(sequence, &row.before)?;
            // Nothing follows the last token.
            let mut positions = scorer.score_by_logits(sequence, &row.tokens)?;
            positions.extend(positions.last().cloned());
            scorer.session.close(sequence)?;
            Ok(RowResult::Likelihoods(positions))
        };
        let results = rows.iter().map(score).collect::<Result<_>>()?;
        scores(texts, &rows, results)
    }

    /// Encodes texts for [`score_all_tokens`](Self::score_all_tokens).
    pub(crate) fn encode_to_score(
        &self,
        texts: &[impl AsRef<str>],
        options: &ScoreOptions,
    ) -> Result<Vec<Vec<TokenId>>> {
        let tokenizer = self.tokenizer()?;
        let before = if options.special_tokens { tokenizer.tokens_before() } else { &[] };
        let encode = |text: &str| Ok([before, &tokenizer.encode(text, false)?].concat());
        texts.iter().map(|text| encode(text.as_ref())).collect()
    }

    /// The rows that texts of these tokens are scored by: one for each window over each text.
    pub(crate) fn rows_to_score(
        &self,
        texts: &[Vec<TokenId>],
        options: &ScoreOptions,
    ) -> Result<Vec<TextRow>> {
        let claimed = self.capabilities();
        if claimed.every_position {
            Capabilities::require(options.top <= claimed.top_logprobs, OPERATION, "top_logprobs")?;
        }
        let answer = TextAnswer::Likelihoods(options.top);
        let mut rows = Vec::with_capacity(texts.len());
        for tokens in texts {
            if tokens.len() < 2 {
                let message = "scoring needs at least two tokens, since the first has no log probability";
                return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                    .with_context("tokens", tokens.len()));
            }
            for Window { begin, scored, end } in windows(tokens.len(), claimed.context, options.stride)? {
                // The token before the first that is scored says what that one is worth.
                let (before, tokens) = (tokens[begin..scored - 1].to_vec(), tokens[scored - 1..end].to_vec());
                rows.push(TextRow { before, tokens, types: Vec::new(), answer });
            }
        }
        Ok(rows)
    }
}

/// The scores of `texts` from the results of their rows.
pub(crate) fn scores(
    texts: &[Vec<TokenId>],
    rows: &[TextRow],
    results: Vec<RowResult>,
) -> Result<Vec<TextScore>> {
    let mut results = rows.iter().zip(results);
    let score = |tokens: &Vec<TokenId>| {
        let mut score = TextScore { tokens: tokens.clone(), logprobs: vec![None], top: vec![Vec::new()] };
        while score.logprobs.len() < tokens.len() {
            let (row, result) = results.next().ok_or_else(wrong_kind)?;
            for position in positions(result, row.tokens.len())? {
                score.logprobs.push(position.following);
                score.top.push(position.top);
            }
        }
        Ok(score)
    };
    texts.iter().map(score).collect()
}

/// A part of a text that is scored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    begin: usize,
    /// The first token that is scored.
    scored: usize,
    end: usize,
}

/// The windows over a text of `length` tokens, at most `context` each.
fn windows(length: usize, context: usize, stride: Option<usize>) -> Result<Vec<Window>> {
    if length <= context {
        return Ok(vec![Window { begin: 0, scored: 1, end: length }]);
    }
    if context < 2 {
        let message = "scoring needs a capacity of at least two tokens";
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
            .with_context("field", "capacity")
            .with_context("value", context));
    }
    let stride = stride.unwrap_or(context / 2);
    if stride == 0 || stride >= context {
        let message = "the stride must be positive and less than the context";
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
            .with_context("field", "stride")
            .with_context("value", stride)
            .with_context("context", context));
    }
    let mut windows = vec![Window { begin: 0, scored: 1, end: context }];
    while let Some(last) = windows.last().filter(|last| last.end < length) {
        let begin = last.begin + stride;
        windows.push(Window { begin, scored: last.end, end: length.min(begin + context) });
    }
    Ok(windows)
}

/// A session that scores.
pub(crate) struct Scorer {
    pub(crate) session: Box<dyn InferenceSession>,
    top: u16,
    cancel: Option<CancelToken>,
}

impl Scorer {
    pub(crate) fn new(model: &Model, top: u16, cancel: Option<CancelToken>) -> Result<Self> {
        let claimed = model.capabilities();
        if claimed.every_position {
            Capabilities::require(top <= claimed.top_logprobs, OPERATION, "top_logprobs")?;
        } else {
            // The more telling of the two is named.
            Capabilities::require(claimed.logits, OPERATION, "every_position")?;
        }
        Ok(Self { session: model.engine().open_session(&SessionOptions::default())?, top, cancel })
    }

    /// Feeds tokens that are not scored.
    pub(crate) fn extend(&mut self, sequence: SequenceId, tokens: &[TokenId]) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.run(Row::extend(sequence, tokens)).map(drop)
    }

    /// Feeds tokens to each sequence, and gives for each but the last what stands behind it there.
    pub(crate) fn score(&mut self, rows: &[(SequenceId, &[TokenId])]) -> Result<Vec<Vec<PositionResult>>> {
        if !self.session.capabilities().every_position {
            return rows.iter().map(|&(sequence, tokens)| self.score_by_logits(sequence, tokens)).collect();
        }
        let want = Want::likelihoods(self.top);
        let asked: Vec<_> = rows.iter().map(|&(sequence, tokens)| Row::new(sequence, tokens, want)).collect();
        let mut out = StepOutput::new();
        self.session.step(&asked, &control(self.cancel.as_ref()), &mut out)?;
        out.take().into_iter().zip(rows).map(|(row, (_, tokens))| positions(row?, tokens.len())).collect()
    }

    /// As [`score`](Self::score) for one sequence, token by token.
    fn score_by_logits(&mut self, sequence: SequenceId, tokens: &[TokenId]) -> Result<Vec<PositionResult>> {
        let mut scored = Vec::with_capacity(tokens.len());
        for pair in tokens.windows(2) {
            let logits = self.run(Row::logits(sequence, &pair[..1]))?.into_logits()?;
            scored.push(Distribution::new(&logits)?.position(Some(pair[1]), self.top));
        }
        Ok(scored)
    }

    fn run(&mut self, row: Row<'_>) -> Result<RowResult> {
        self.session.run_row(row, &control(self.cancel.as_ref()))
    }
}

/// The results of a row but that of its last token, which nothing follows.
fn positions(result: RowResult, tokens: usize) -> Result<Vec<PositionResult>> {
    match result {
        RowResult::Likelihoods(mut positions) if positions.len() == tokens => {
            positions.pop();
            Ok(positions)
        }
        _ => Err(wrong_kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(length: usize, context: usize, stride: Option<usize>) -> Vec<(usize, usize, usize)> {
        let windows = windows(length, context, stride).unwrap();
        windows.into_iter().map(|window| (window.begin, window.scored, window.end)).collect()
    }

    #[test]
    fn every_token_but_the_first_is_scored_once_with_preceding_context() {
        assert_eq!(spans(8, 8, None), [(0, 1, 8)]);
        assert_eq!(spans(9, 8, None), [(0, 1, 8), (4, 8, 9)]);
        assert_eq!(spans(20, 8, Some(6)), [(0, 1, 8), (6, 8, 14), (12, 14, 20)]);
        assert_eq!(spans(3, 2, None), [(0, 1, 2), (1, 2, 3)]);
        for stride in [0, 8] {
            assert_eq!(windows(9, 8, Some(stride)).unwrap_err().context("field"), Some("stride"));
        }
        assert_eq!(windows(9, 1, None).unwrap_err().context("field"), Some("capacity"));
    }
}
