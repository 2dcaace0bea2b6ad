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

use std::fmt;
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

/// A step under its name.
struct Named<F> {
    name: &'static str,
    apply: F,
}

impl<F> fmt::Debug for Named<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl<F> SamplingStep for Named<F>
where
    F: Fn(&mut Candidates, &StepContext<'_>) -> Result<()> + Send + Sync,
{
    fn name(&self) -> &str {
        self.name
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        (self.apply)(candidates, context)
    }
}

/// A step of this name.
fn named<F>(name: &'static str, apply: F) -> Step
where
    F: Fn(&mut Candidates, &StepContext<'_>) -> Result<()> + Send + Sync + 'static,
{
    Some(Arc::new(Named { name, apply }))
}

/// The step of `field`, if that does anything by its value.
fn active<F>(params: &SamplingParams, field: SamplingField, apply: F) -> Step
where
    F: Fn(&mut Candidates, &StepContext<'_>) -> Result<()> + Send + Sync + 'static,
{
    if params.active_fields().contains(field) { named(field.as_str(), apply) } else { None }
}

/// As [`active`], for a step that cannot fail and is handed the most likely candidate.
fn filter<F>(params: &SamplingParams, field: SamplingField, apply: F) -> Step
where
    F: Fn(&mut Candidates, Candidate, &StepContext<'_>) + Send + Sync + 'static,
{
    active(params, field, move |candidates, context| {
        if let Some(best) = candidates.best() {
            apply(candidates, best, context);
        }
        Ok(())
    })
}

/// How often each of `tokens` occurs.
fn counts(tokens: &[TokenId]) -> impl Iterator<Item = (TokenId, usize)> {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    let runs: Vec<_> = sorted.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    runs.into_iter()
}
