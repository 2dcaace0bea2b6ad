//! One pass over the weights: builds the graph, evaluates it, reads the results.

use mlxcel_core::{
    Error, ErrorKind, HiddenPool, Pooling, PositionResult, Result, RowResult, SampledToken, TokenId,
    TokenLogprob,
};

use super::compute::Compute;
use super::network::{Network, Span, Wanted};
use super::request::{CacheId, Choice, Output, RowRequest};
use super::sampling::{self, Counted};
use super::state::States;
use crate::array::{Array, DType, concatenate};

/// A pass as a graph that is not computed yet.
pub(super) struct Pass {
    /// The states of its rows after the pass, in row order.
    pub(super) states: Vec<States>,
    /// The results to read; none if nothing is wanted.
    pub(super) results: Option<Results>,
}

/// The readable results of a pass.
pub(super) struct Results {
    /// All of them in one array of 32-bit words, so that there is one readback.
    words: Array,
    /// The tokens that are chosen (`[rows that want one]`, `U32`).
    pub(super) chosen: Option<Array>,
    /// The token counts for the penalties of those rows.
    pub(super) counted: Vec<Option<Counted>>,
}

impl Results {
    pub(super) fn array(&self) -> &Array {
        &self.words
    }
}

/// The hidden states that rows need, for logits or as results, in this order.
#[derive(Default)]
struct Sources {
    /// Indices into the tokens of the pass.
    indices: Vec<u32>,
    tokens: usize,
    logits: usize,
    /// How many of the indices are for hidden states that rows want: the last ones.
    hidden: usize,
}

impl Sources {
    /// Sorted by want: tokens, logits, every position, hidden states.
    fn of(rows: &[RowRequest], spans: &[Span]) -> Self {
        let mut wanted = Self::default();
        let ends = |span: &Span, count: usize| {
            let end = span.start + span.count;
            (end - count..end).map(|index| index as u32)
        };
        for (row, span) in rows.iter().zip(spans) {
            let tokens = row.output.choices().len();
            wanted.indices.extend(ends(span, tokens));
            wanted.tokens += tokens;
        }
        for (row, span) in rows.iter().zip(spans) {
            wanted.indices.extend(ends(span, row.output.logits()));
            wanted.logits += row.output.logits();
        }
        for (row, span) in rows.iter().zip(spans) {
            if matches!(row.output, Output::Likelihoods { .. }) {
                wanted.indices.extend((span.start..span.start + span.count).map(|index| index as u32));
            }
        }
        let logits = wanted.indices.len();
        for (row, span) in rows.iter().zip(spans) {
            if let Output::Hidden(count) = row.output {
                wanted.indices.extend(ends(span, count));
            }
        }
        wanted.hidden = wanted.indices.len() - logits;
        wanted
    }
}

/// The spans of `rows`, whose `tokens` are consecutive.
fn spans_of(rows: &[RowRequest]) -> Vec<Span> {
    let lay = |start: &mut usize, row: &RowRequest| {
        let span =
            Span { start: *start, count: row.tokens.len(), position: row.position, length: row.length };
        *start += span.count;
        Some(span)
    };
    rows.iter().scan(0, lay).collect()
}

impl Pass {
    /// The graph of `rows`, with their `tokens` and `states`. `counted` are the token counts for penalties of rows that want a
    /// token.
    pub(super) fn build(
        network: &Network,
        rows: &[RowRequest],
        tokens: &Array,
        states: &[Option<&States>],
        counted: Vec<Option<Counted>>,
    ) -> Result<Self> {
        let spans = spans_of(rows);
        let wanted = Sources::of(rows, &spans);
        let everything = (0..).take(tokens.len()).eq(wanted.indices.iter().copied());
        let indices = match wanted.indices.len() {
            count if count > 0 && !everything => Some(Array::from_slice(&wanted.indices, &[count])?),
            _ => None,
        };
        let some = match &indices {
            Some(indices) => Wanted::Some(indices),
            None if everything => Wanted::All,
            None => Wanted::None,
        };
        let (outputs, states) = network.run(tokens, &spans, states, some, wanted.hidden)?;
        let mut parts = Vec::new();
        if let Some(hidden) = &outputs.hidden {
            pool(rows, hidden, &mut parts)?;
        }
        let chosen = match &outputs.logits {
            Some(logits) => read_out(network.compute, rows, &spans, &wanted, logits, &counted, &mut parts)?,
            None => None,
        };
        let results = match parts.is_empty() {
            true => None,
            false => Some(Results { words: concatenate(&parts, 0)?, chosen, counted }),
        };
        Ok(Self { states, results })
    }
}

/// Adds the results that `rows` want from `logits` to `parts`, and returns the chosen tokens.
fn read_out(
    compute: Compute,
    rows: &[RowRequest],
    spans: &[Span],
    wanted: &Sources,
    logits: &Array,
    counted: &[Option<Counted>],
    parts: &mut Vec<Array>,
) -> Result<Option<Array>> {
    let chosen = match wanted.tokens {
        0 => None,
        count => Some(choose(compute, rows, spans, &logits.slice_axis(0, 0, count)?, counted, parts)?),
    };
    let mut next = wanted.tokens;
    if wanted.logits > 0 {
        parts.push(words(&logits.slice_axis(0, next, next + wanted.logits)?)?);
        next += wanted.logits;
    }
    for (row, span) in rows.iter().zip(spans) {
        let Output::Likelihoods { top, following } = row.output else { continue };
        let own = logits.slice_axis(0, next, next + span.count)?;
        next += span.count;
        let best = own.argmax(-1, true)?;
        // The entry of the last token is unused if its successor is unknown.
        let mut follow: Vec<TokenId> = row.tokens.iter().skip(1).copied().collect();
        follow.push(following.unwrap_or(0));
        let follow = Array::from_slice(&follow, &[span.count, 1])?;
        parts.push(words(&best)?);
        parts.push(words(&compute.logprobs(&own, &best)?)?);
        parts.push(words(&compute.logprobs(&own, &follow)?)?);
        push_top(compute, &own, top, parts)?;
    }
    Ok(chosen)
}

/// Adds the hidden states that `rows` want, or their sums, to `parts`; `hidden` (`[states, hidden]`, float32) has them in row
/// order.
fn pool(rows: &[RowRequest], hidden: &Array, parts: &mut Vec<Array>) -> Result<()> {
    let mut next = 0;
    for row in rows {
        let Output::Hidden(count) = row.output else { continue };
        let own = hidden.slice_axis(0, next, next + count)?;
        next += count;
        parts.push(words(&if count > 1 { own.sum(&[0], false)? } else { own })?);
    }
    Ok(())
}

/// Chooses the tokens of the rows that want one, from `logits` with a row for each, and adds them to `parts` with their
/// log probabilities and other wanted results.
fn choose(
    compute: Compute,
    rows: &[RowRequest],
    spans: &[Span],
    logits: &Array,
    counted: &[Option<Counted>],
    parts: &mut Vec<Array>,
) -> Result<Array> {
    let choices = rows.iter().zip(spans).flat_map(|(row, span)| {
        let (choices, end) = (row.output.choices(), span.position + span.count);
        choices.iter().rev().enumerate().map(move |(before, choice)| (choice, end - before)).rev()
    });
    let choices: Vec<(&Choice, usize)> = choices.collect();
    let chosen = if choices.iter().all(|(choice, _)| choice.plan.is_greedy() && choice.mask.is_none()) {
        logits.argmax(-1, false)?
    } else {
        let each = choices.iter().enumerate().map(|(index, (choice, position))| {
            let own = logits.slice_axis(0, index, index + 1)?.reshape(&[logits.dim(-1)])?;
            sampling::choose(&own, choice, counted.get(index).and_then(Option::as_ref), *position)
        });
        concatenate(&each.collect::<Result<Vec<_>>>()?, 0)?
    };
    parts.push(chosen.clone());
    parts.push(words(&compute.logprobs(logits, &chosen.expand_dims(&[1])?)?)?);
    for (index, (choice, _)) in choices.iter().enumerate() {
        push_top(compute, &logits.slice_axis(0, index, index + 1)?, choice.top, parts)?;
    }
    Ok(chosen)
}

/// Adds the `count` most likely tokens of each row of `logits` to `parts`, and their log probabilities.
fn push_top(compute: Compute, logits: &Array, count: u16, parts: &mut Vec<Array>) -> Result<()> {
    if count > 0 {
        let top = sampling::top(logits, usize::from(count))?;
        parts.push(words(&top)?);
        parts.push(words(&compute.logprobs(logits, &top)?)?);
    }
    Ok(())
}

/// The bits of an array of 32-bit elements, consecutively.
fn words(array: &Array) -> Result<Array> {
    array.reshape(&[array.len()])?.reinterpret(DType::U32)
}

/// The results of `rows` from the words of their pass, with `vocabulary` logits and `hidden` elements of a hidden state; a row
/// with unusable logits returns an error.
pub(super) fn answers(
    rows: &[RowRequest],
    words: &[u32],
    vocabulary: usize,
    hidden: usize,
) -> Result<Vec<Result<RowResult>>> {
    let mut words = Words(words);
    let states = rows.iter().filter(|row| matches!(row.output, Output::Hidden(_)));
    let states = states.map(|_| words.floats(hidden)).collect::<Result<Vec<_>>>()?;
    let mut states = states.into_iter();
    let tops: Vec<u16> = rows.iter().flat_map(|row| row.output.choices()).map(|choice| choice.top).collect();
    let (tokens, logprobs) = (words.take(tops.len())?, words.floats(tops.len())?);
    let mut chosen = Vec::with_capacity(tops.len());
    for ((&token, &logprob), &top) in tokens.iter().zip(&logprobs).zip(&tops) {
        let token = SampledToken::new(token, logprob).with_top(words.top(1, top)?.remove(0));
        chosen.push(said([logprob], token));
    }
    let mut chosen = chosen.into_iter();
    let count: usize = rows.iter().map(|row| row.output.logits()).sum();
    let mut logits = (0..count).map(|_| words.floats(vocabulary)).collect::<Result<Vec<_>>>()?.into_iter();
    let mut answers = Vec::with_capacity(rows.len());
    for row in rows {
        answers.push(match row.output {
            Output::Nothing => Ok(RowResult::Extended),
            Output::Tokens(ref choices) => {
                let own: Vec<_> = chosen.by_ref().take(choices.len()).collect();
                own.into_iter().collect::<Result<_>>().map(RowResult::Tokens)
            }
            Output::Logits(count) => {
                // All of the row's, whichever are not numbers: the next row's come behind them.
                let own: Vec<_> = logits.by_ref().take(count).collect();
                own.into_iter().map(finite).collect::<Result<_>>().map(RowResult::Logits)
            }
            Output::Likelihoods { top, following } => {
                let positions = positions(&mut words, row.tokens.len(), top, following.is_some())?;
                let best: Vec<f32> = positions.iter().map(|position| position.best.logprob).collect();
                said(best, RowResult::Likelihoods(positions))
            }
            Output::Hidden(_) => {
                // A NaN state is an error.
                let mut pool = HiddenPool::new(Pooling::Last);
                pool.add(&states.next().ok_or_else(too_short)?);
                pool.finish("step").map(RowResult::Hidden)
            }
        });
    }
    Ok(answers)
}

/// `logits`, unless one is NaN or the largest is infinite.
fn finite(logits: Vec<f32>) -> Result<Vec<f32>> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let not_a_number = logits.iter().copied().find(|logit| logit.is_nan());
    said([not_a_number.unwrap_or(largest)], logits)
}

/// `answer`, unless one of its numbers is not finite: the log probability of a chosen token is finite unless a logit is NaN or the
/// largest is infinite.
fn said<T>(numbers: impl IntoIterator<Item = f32>, answer: T) -> Result<T> {
    match numbers.into_iter().all(f32::is_finite) {
        true => Ok(answer),
        false => Err(Error::not_a_number("step")),
    }
}

/// The results of `count` positions; `followed` if the token after the last is known.
fn positions(words: &mut Words<'_>, count: usize, top: u16, followed: bool) -> Result<Vec<PositionResult>> {
    let (best, logprobs) = (words.take(count)?, words.floats(count)?);
    let following = words.floats(count)?;
    let tops = words.top(count, top)?;
    let positions = best.iter().zip(logprobs).zip(following).zip(tops).enumerate();
    Ok(positions
        .map(|(index, (((&token, logprob), following), top))| {
            let following = (index + 1 < count || followed).then_some(following);
            PositionResult::new(TokenLogprob { token, logprob }, following).with_top(top)
        })
        .collect())
}

/// A reader of words, front to back.
struct Words<'a>(&'a [u32]);

impl<'a> Words<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u32]> {
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(too_short)?;
        self.0 = tail;
        Ok(head)
    }

    fn floats(&mut self, count: usize) -> Result<Vec<f32>> {
        Ok(self.take(count)?.iter().map(|&bits| f32::from_bits(bits)).collect())
    }

    /// The `top` most likely tokens of each of `rows` rows.
    fn top(&mut self, rows: usize, top: u16) -> Result<Vec<Vec<TokenLogprob>>> {
        let top = usize::from(top);
        if top == 0 {
            return Ok(vec![Vec::new(); rows]);
        }
        let (tokens, logprobs) = (self.take(rows * top)?, self.floats(rows * top)?);
        let pair = |(&token, &logprob)| TokenLogprob { token, logprob };
        let rows = tokens.chunks(top).zip(logprobs.chunks(top));
        Ok(rows.map(|(tokens, logprobs)| tokens.iter().zip(logprobs).map(pair).collect()).collect())
    }
}

fn too_short() -> Error {
    Error::new(ErrorKind::Internal, "step", "the pass returned fewer results than its rows want")
}

/// The caches that `rows` read and write.
pub(super) fn cache_ids(rows: &[RowRequest]) -> impl Iterator<Item = CacheId> + '_ {
    rows.iter().map(|row| row.cache)
}
