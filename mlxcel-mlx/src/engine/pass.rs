//! One pass over the weights: builds the graph, evaluates it, reads the results.

use mlxcel_core::{Distribution, Error, ErrorKind, HiddenPool, Pooling, Result, RowResult, SampledToken};

use super::adapters::RowSlots;
use super::compute::Compute;
use super::network::{Inputs, Network, Outputs, Span, Wanted};
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
    /// Sorted by want: tokens, logits, hidden states.
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
            wanted.indices.extend(ends(span, row.logits()));
            wanted.logits += row.logits();
        }
        let logits = wanted.indices.len();
        for (row, span) in rows.iter().zip(spans) {
            match row.output {
                Output::FirstHidden => wanted.indices.push(span.start as u32),
                _ => wanted.indices.extend(ends(span, row.output.hidden())),
            }
        }
        wanted.hidden = wanted.indices.len() - logits;
        wanted
    }
}

/// The spans of `rows`, whose `tokens` are consecutive.
fn spans_of(rows: &[RowRequest]) -> Vec<Span> {
    let lay = |start: &mut usize, row: &RowRequest| {
        let RowRequest { position, length, adapter, .. } = *row;
        let span = Span { start: *start, count: row.tokens.len(), position, length, adapter };
        *start += span.count;
        Some(span)
    };
    rows.iter().scan(0, lay).collect()
}

/// The types of the tokens of `rows` (`[tokens]`, `U32`), none if all are 0.
fn types_of(rows: &[RowRequest]) -> Result<Option<Array>> {
    if rows.iter().all(|row| row.types.is_empty()) {
        return Ok(None);
    }
    let of = |row: &RowRequest| {
        let mut types: Vec<u32> = row.types.iter().map(|&own| own.into()).collect();
        types.resize(row.tokens.len(), 0);
        types
    };
    let types: Vec<u32> = rows.iter().flat_map(of).collect();
    Array::from_slice(&types, &[types.len()]).map(Some)
}

/// The hidden states that `rows` of a draft head bring (`[tokens, hidden]`, float32), none for other models.
fn input_states_of(rows: &[RowRequest], hidden: usize) -> Result<Option<Array>> {
    if rows.iter().all(|row| row.input_states.is_empty()) {
        return Ok(None);
    }
    let states: Vec<f32> = rows.iter().flat_map(|row| row.input_states.iter().copied()).collect();
    let tokens = rows.iter().map(|row| row.tokens.len()).sum();
    Array::from_slice(&states, &[tokens, hidden]).map(Some)
}

impl Pass {
    /// The graph of `rows`, with their `tokens` and `states`. `counted` are the token counts for penalties of
    /// rows that want a token.
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
            Some(indices) if indices.len() == tokens.len() => Wanted::Reordered(indices),
            Some(indices) => Wanted::Some(indices),
            None if everything => Wanted::All,
            None => Wanted::None,
        };
        let some = (some, RowSlots::new(&spans, &wanted.indices));
        let (types, input_states) = (types_of(rows)?, input_states_of(rows, network.hidden_size())?);
        let inputs = Inputs { tokens, types: types.as_ref(), states: input_states.as_ref() };
        let (Outputs { logits, hidden, states: all }, states) =
            network.run(inputs, &spans, states, some, wanted.hidden)?;
        let mut parts = Vec::new();
        if let Some(all) = &all {
            return_states(rows, &spans, all, &mut parts)?;
        }
        if let Some(hidden) = &hidden {
            pool(rows, hidden, &mut parts)?;
        }
        let mut chosen = None;
        if let (Some(logits), count @ 1..) = (&logits, wanted.tokens) {
            let own = logits.slice_axis(0, 0, count)?;
            chosen = Some(choose(network.compute, rows, &spans, &own, &counted, &mut parts)?);
        }
        if let (Some(logits), count @ 1..) = (&logits, wanted.logits) {
            parts.push(words(&logits.slice_axis(0, wanted.tokens, wanted.tokens + count)?)?);
        }
        let results = match parts.is_empty() {
            true => None,
            false => Some(Results { words: concatenate(&parts, 0)?, chosen, counted }),
        };
        Ok(Self { states, results })
    }
}

/// Adds the hidden states that `rows` return to `parts`; `all` (`[tokens, hidden]`, float32) has those of all
/// tokens.
fn return_states(rows: &[RowRequest], spans: &[Span], all: &Array, parts: &mut Vec<Array>) -> Result<()> {
    for (row, span) in rows.iter().zip(spans).filter(|(row, _)| row.output_states > 0) {
        let end = span.start + span.count;
        parts.push(words(&all.slice_axis(0, end - row.output_states, end)?)?);
    }
    Ok(())
}

/// Adds the hidden states that `rows` want, or their sums, to `parts`; `hidden` (`[states, hidden]`, float32)
/// has them in row order.
fn pool(rows: &[RowRequest], hidden: &Array, parts: &mut Vec<Array>) -> Result<()> {
    let mut next = 0;
    for row in rows {
        let count = row.output.hidden();
        if count == 0 {
            continue;
        }
        let own = hidden.slice_axis(0, next, next + count)?;
        next += count;
        let sums = count > 1 && matches!(row.output, Output::Hidden(_));
        parts.push(words(&if sums { own.sum(&[0], false)? } else { own })?);
    }
    Ok(())
}

/// Chooses the tokens of the rows that want one, from `logits` with a row for each, and adds them to `parts`
/// with their log probabilities and other wanted results.
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
        if choice.top > 0 {
            parts.push(words(&logits.slice_axis(0, index, index + 1)?)?);
        }
    }
    Ok(chosen)
}

/// The bits of an array of 32-bit elements, consecutively.
fn words(array: &Array) -> Result<Array> {
    array.reshape(&[array.len()])?.reinterpret(DType::U32)
}

/// The results of `rows`, and the hidden states that they return, from the words of their pass, with
/// `vocabulary` logits, and `hidden` and `state` elements of a hidden state and of one that is returned; a
/// row with unusable logits returns an error.
pub(super) fn answers(
    rows: &[RowRequest],
    words: &[u32],
    vocabulary: usize,
    [hidden, state]: [usize; 2],
) -> Result<Vec<(Result<RowResult>, Vec<f32>)>> {
    let mut words = Words(words);
    let returned = rows.iter().map(|row| words.floats(row.output_states * state));
    let returned = returned.collect::<Result<Vec<_>>>()?;
    let states = rows.iter().map(|row| match row.output {
        Output::EachHidden(count) => count,
        _ => row.output.hidden().min(1),
    });
    let states = states.filter(|&count| count > 0).map(|count| words.floats(count * hidden));
    let states = states.collect::<Result<Vec<_>>>()?;
    let mut states = states.into_iter();
    let tops: Vec<u16> = rows.iter().flat_map(|row| row.output.choices()).map(|choice| choice.top).collect();
    let (tokens, logprobs) = (words.take(tops.len())?, words.floats(tops.len())?);
    let mut chosen = Vec::with_capacity(tops.len());
    for ((&token, &logprob), &top) in tokens.iter().zip(&logprobs).zip(&tops) {
        chosen.push(match top {
            // The log probability of a chosen token is finite unless the logits make no distribution.
            0 if logprob.is_finite() => Ok(SampledToken::new(token, logprob)),
            0 => Err(Error::not_a_number("step")),
            top => Distribution::new(&words.floats(vocabulary)?).map(|own| own.sampled(token, top)),
        });
    }
    let mut chosen = chosen.into_iter();
    let count: usize = rows.iter().map(RowRequest::logits).sum();
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
                let checked = own.iter().try_for_each(|logits| Distribution::check(logits));
                checked.map(|()| RowResult::Logits(own))
            }
            Output::Likelihoods { count, top, following } => {
                let own: Vec<_> = logits.by_ref().take(count).collect();
                let last = &row.tokens[row.tokens.len() - count.min(row.tokens.len())..];
                let following = last.iter().skip(1).copied().map(Some).chain([following]);
                let positions = own
                    .iter()
                    .zip(following)
                    .map(|(logits, following)| Ok(Distribution::new(logits)?.position(following, top)));
                positions.collect::<Result<_>>().map(RowResult::Likelihoods)
            }
            Output::Hidden(_) | Output::EachHidden(_) | Output::FirstHidden => {
                // A NaN state is an error.
                let mut pool = HiddenPool::new(Pooling::Last);
                pool.add(&states.next().ok_or_else(too_short)?);
                pool.finish("step").map(RowResult::Hidden)
            }
        });
    }
    Ok(answers.into_iter().zip(returned).collect())
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
}

fn too_short() -> Error {
    Error::new(ErrorKind::Internal, "step", "the pass returned fewer results than its rows want")
}

/// The caches that `rows` read and write.
pub(super) fn cache_ids(rows: &[RowRequest]) -> impl Iterator<Item = CacheId> + '_ {
    rows.iter().map(|row| row.cache)
}
