//! The steps of [`SamplingParams`], one a file.
//!
//! Each step is a file here, with a function `step` that creates it if the parameters enable it, and an entry
//! in one of the lists below, which are in the order in which the steps run.

mod bias;
mod counts;
mod dry;
mod limits;
mod min_p;
mod mirostat;
mod ngram;
mod repetition;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result, SamplingField, SamplingParams, TokenId};

use super::{Candidate, Candidates, SamplingStep, StepContext};

type Step = Option<Arc<dyn SamplingStep>>;
type Make = fn(&SamplingParams) -> Step;

/// What changes logits, for greedy choice too; then come the application's own steps.
const LOGITS: &[Make] = &[limits::step, bias::step, repetition::step, counts::step, dry::step, ngram::step];

/// What filters a draw. Each is handed candidates with finite scores, and leaves at least one.
const DRAW: &[Make] = &[
    top_n_sigma::step,
    temperature::step,
    top_k::step,
    top_p::step,
    min_p::step,
    typical::step,
    xtc::step,
    mirostat::step,
];

/// The steps that `params` ask for, before the application's own and after them.
pub(super) fn of(params: &SamplingParams) -> [Vec<Arc<dyn SamplingStep>>; 2] {
    [LOGITS, DRAW].map(|list| list.iter().filter_map(|make| make(params)).collect())
}

fn some<S: SamplingStep + 'static>(step: Option<S>) -> Step {
    step.map(|step| Arc::new(step) as Arc<dyn SamplingStep>)
}

/// The step, if `field` does anything by its value.
fn active<S: SamplingStep + 'static>(params: &SamplingParams, field: SamplingField, step: Option<S>) -> Step {
    some(step.filter(|_| params.active_fields().contains(field)))
}

/// An error about `token`, which `field` names and the vocabulary lacks.
fn beyond(field: &'static str, token: TokenId, candidates: &Candidates) -> Error {
    Error::new(ErrorKind::InvalidInput, "sample", "the token is outside the vocabulary")
        .with_context("field", field)
        .with_context("token", token)
        .with_context("vocabulary_size", candidates.vocabulary_size())
}

/// How often each of `tokens` occurs.
fn counts(tokens: &[TokenId]) -> impl Iterator<Item = (TokenId, usize)> {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    let runs: Vec<_> = sorted.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    runs.into_iter()
}
