//! Mutants that compute rightly and answer wrongly, or choose by another plan than they were given.

use std::sync::LazyLock;

use mlxcel_core::{
    Answer, Capabilities, Control, ErrorKind, Positions, Row, RowResult, SampledToken, SamplingField,
    SamplingParams, SamplingPlace, SamplingPlan, TokenMask, Want,
};

use crate::mutants::Mutants;
use crate::mutants::context::misread;
use crate::mutants::twist::{Inner, Results, Rowing, Stepping, Twist};

pub(crate) const UNREFUSALS: Mutants<Unrefusal> = &[
    ("samples_from_nan", |want| {
        let chosen = RowResult::Tokens(vec![SampledToken::new(0, f32::NAN)]);
        matches!(want.answer, Answer::Token { .. }).then_some(chosen)
    }),
    ("returns_nan_logits", |want| {
        matches!(want.answer, Answer::Logits).then(|| RowResult::Logits(vec![vec![f32::NAN; 64]]))
    }),
];

static GREEDY: LazyLock<SamplingPlan> = LazyLock::new(SamplingPlan::greedy);

pub(crate) const ROWS: Mutants<Rowing> = &[
    ("ignores_masks", |row| row.want = row.want.with_masks(&[])),
    ("accepts_any_mask", |row| {
        if let Answer::Token { masks, .. } = row.want.answer
            && !masks.iter().all(|mask| !mask.is_empty() && mask.vocabulary_size() == 64)
        {
            row.want = row.want.with_masks(&[]);
        }
    }),
    // Takes a plan that is for the host, and chooses greedily.
    ("samples_for_the_host", |row| {
        if let Answer::Token { plan, masks, top } = row.want.answer
            && plan.place() == SamplingPlace::Host
        {
            row.want = Want::token(&GREEDY).with_masks(masks).with_top(top);
        }
    }),
];

pub(crate) const STEPS: Mutants<Stepping> = &[
    // The second most likely token, where it comes close.
    ("picks_the_second", |inner, rows, control| {
        let mut results = inner.step(rows, control)?;
        for (row, result) in rows.iter().zip(&mut results) {
            if let Some(token) = result.as_mut().ok().and_then(only_token) {
                let held = inner.text(row.sequence);
                let want = Want::token(&GREEDY).with_top(2);
                let again = misread(inner, &held, &Row::new(row.sequence, row.tokens, want))?.into_token()?;
                if again.top[0].logprob - again.top[1].logprob < 0.5 {
                    (token.token, token.logprob) = (again.top[1].token, again.top[1].logprob);
                }
            }
        }
        Ok(results)
    }),
    // Limits each draft token by the mask of the next one.
    ("takes_the_mask_of_another_position", |inner, rows, control| {
        let rotated = |row: &Row<'_>| match row.want.answer {
            Answer::Token { masks: [first, others @ ..], .. } => {
                others.iter().chain([first]).cloned().collect()
            }
            _ => Vec::new(),
        };
        let masks: Vec<Vec<TokenMask>> = rows.iter().map(rotated).collect();
        let mut rows = rows.to_vec();
        rows.iter_mut().zip(&masks).for_each(|(row, masks)| row.want = row.want.with_masks(masks));
        inner.step(&rows, control)
    }),
    // The results stand in the order of the sequences.
    ("answers_by_sequence", |inner, rows, control| {
        let results = inner.step(rows, control)?;
        let mut results: Vec<_> = rows.iter().map(|row| row.sequence).zip(results).collect();
        results.sort_by_key(|(sequence, _)| *sequence);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }),
];

pub(crate) const REANSWERS: Mutants<Reanswering> = &[
    ("rounds_in_batches", |_, rows, result| {
        if let RowResult::Logits(logits) = result {
            logits.iter_mut().flatten().for_each(|logit| *logit *= 1.0 + 1e-6 * (rows - 1) as f32);
        }
    }),
    ("leaves_logits_out", |_, _, result| {
        if let RowResult::Logits(rows) = result {
            rows.iter_mut().for_each(|logits| logits.truncate(logits.len() - 1));
        }
    }),
    ("logprobs_are_logits", |_, _, result| {
        if let Some(token) = only_token(result) {
            token.logprob += 4.0;
            token.top.iter_mut().for_each(|entry| entry.logprob += 4.0);
        }
    }),
    ("top_is_unsorted", |_, _, result| {
        if let Some(token) = only_token(result)
            && token.top.len() > 2
        {
            token.top.swap(1, 2);
        }
    }),
    ("top_is_one_short", |_, _, result| {
        if let Some(token) = only_token(result) {
            token.top.pop();
        }
    }),
    ("scores_are_shifted", |_, _, result| {
        if let RowResult::Likelihoods(positions) = result {
            let best: Vec<_> = positions.iter().map(|position| position.best).collect();
            positions.iter_mut().skip(1).zip(best).for_each(|(position, best)| position.best = best);
        }
    }),
    // Every position is claimed, and answered with what is known of the last one.
    ("scores_the_last_everywhere", |_, _, result| {
        if let RowResult::Likelihoods(positions) = result
            && let Some(last) = positions.last().map(|position| position.best)
        {
            positions.iter_mut().for_each(|position| position.best = last);
        }
    }),
    // Draft tokens are answered with what is chosen behind the last of them.
    ("verifies_the_last_everywhere", |_, _, result| {
        if let RowResult::Tokens(tokens) = result
            && let Some(last) = tokens.last().cloned()
        {
            tokens.iter_mut().for_each(|token| *token = last.clone());
        }
    }),
    ("verification_is_shifted", |_, _, result| {
        if let RowResult::Tokens(tokens) = result {
            tokens.rotate_right(1);
        }
    }),
    // The answers are right, and stand at the wrong positions.
    ("swaps_positions", |_, _, result| match result {
        RowResult::Tokens(tokens) => tokens.reverse(),
        RowResult::Logits(rows) => rows.reverse(),
        _ => {}
    }),
    ("verifies_by_the_last_logits", |_, _, result| {
        if let RowResult::Logits(rows) = result
            && let Some(last) = rows.last().cloned()
        {
            rows.iter_mut().for_each(|row| row.clone_from(&last));
        }
    }),
    ("verifies_by_the_first_mask", |row, _, result| {
        if let (Answer::Token { masks: [_, ..], .. }, RowResult::Tokens(tokens)) = (row.want.answer, result)
            && let Some(first) = tokens.first().cloned()
        {
            tokens.iter_mut().for_each(|token| *token = first.clone());
        }
    }),
    // Every draft token of a row is drawn with the number of its first.
    ("verification_draws_by_the_row", |row, _, result| {
        if let (Answer::Token { plan, .. }, RowResult::Tokens(tokens)) = (row.want.answer, result)
            && plan.params().temperature > 0.0
        {
            tokens.iter_mut().skip(1).for_each(|token| token.token = (token.token + 1) % 64);
        }
    }),
    ("mask_changes_probabilities", |row, _, result| {
        if let (Answer::Token { masks: [_], .. }, Some(token)) = (row.want.answer, only_token(result)) {
            token.logprob *= 0.5;
        }
    }),
    ("swallows_stop_tokens", |_, _, result| {
        if let Some(token) = only_token(result)
            && token.token == 0
        {
            token.token = 1;
        }
    }),
];

pub(crate) const REPLANS: Mutants<Replanning> = &[
    ("ignores_seeds", |params, _| params.seed = 0),
    ("draws_from_a_counter", |params, steps| params.seed ^= steps.counter),
    // What it makes of a seed depends on how many rows were in the step.
    ("draws_count_steps", |params, steps| params.seed ^= steps.rows - 1),
    ("draws_ignore_temperature", |params, _| params.temperature = params.temperature.min(1.0).ceil()),
    ("ignores_top_k", |params, _| params.top_k = None),
    ("ignores_top_p", |params, _| params.top_p = None),
    ("ignores_min_p", |params, _| params.min_p = None),
    ("ignores_biases", |params, _| params.logit_bias.clear()),
    ("ignores_repetition_penalties", |params, _| params.repetition_penalty = None),
    ("ignores_presence_penalties", |params, _| params.presence_penalty = None),
    ("ignores_frequency_penalties", |params, _| params.frequency_penalty = None),
    ("penalises_the_prompt", |_, steps| steps.prompt_length = 0),
];

/// Changes each result; the function gets the row's index and the number of rows.
pub(crate) struct Reanswer(pub(crate) Reanswering);

pub(crate) type Reanswering = fn(row: &Row<'_>, rows: usize, result: &mut RowResult);

impl Twist for Reanswer {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut results = inner.step(rows, control)?;
        for (row, result) in rows.iter().zip(&mut results) {
            if let Ok(result) = result {
                (self.0)(row, rows.len(), result);
            }
        }
        Ok(results)
    }
}

/// The token of a row that wanted one.
fn only_token(result: &mut RowResult) -> Option<&mut SampledToken> {
    match result {
        RowResult::Tokens(tokens) if tokens.len() == 1 => tokens.first_mut(),
        _ => None,
    }
}

/// What a plan may be mistaken by.
pub(crate) struct Steps {
    counter: u64,
    rows: u64,
    prompt_length: usize,
}

/// Chooses by another plan.
pub(crate) struct Replan {
    pub(crate) change: Replanning,
    pub(crate) counter: u64,
}

type Replanning = fn(&mut SamplingParams, &mut Steps);

/// A plan by an engine that applies everything.
fn device_plan(params: &SamplingParams) -> SamplingPlan {
    let everything = Capabilities::new(1, 1).with_sampling(SamplingField::ALL.iter().copied().collect());
    SamplingPlan::negotiate(params, &everything).unwrap()
}

impl Twist for Replan {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        self.counter += 1;
        let plans: Vec<_> = rows
            .iter()
            .map(|row| match (row.want.answer, row.want.positions) {
                (Answer::Token { plan, .. }, Positions::Last) if plan.place() == SamplingPlace::Device => {
                    let mut steps = Steps {
                        counter: self.counter,
                        rows: rows.len() as u64,
                        prompt_length: plan.prompt_length(),
                    };
                    let mut params = plan.params().clone();
                    (self.change)(&mut params, &mut steps);
                    Some(device_plan(&params).with_prompt_length(steps.prompt_length))
                }
                _ => None,
            })
            .collect();
        let mut rows = rows.to_vec();
        for (row, plan) in rows.iter_mut().zip(&plans) {
            if let (Answer::Token { masks, top, .. }, Some(plan)) = (row.want.answer, plan) {
                row.want = Want::token(plan).with_masks(masks).with_top(top);
            }
        }
        inner.step(&rows, control)
    }
}

/// Answers what the device refuses.
pub(crate) struct Unrefuse(pub(crate) Unrefusal);

type Unrefusal = fn(Want<'_>) -> Option<RowResult>;

impl Twist for Unrefuse {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?.into_iter().zip(rows).map(|(result, row)| match result {
            Err(error) if error.kind() == ErrorKind::Device => (self.0)(row.want).ok_or(error),
            result => result,
        });
        Ok(results.collect())
    }
}
