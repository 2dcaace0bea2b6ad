//! The host sampler: from logits to a token.

use std::sync::Arc;

use mlxcel_core::{
    LogitsSampler, Result, SampledToken, SamplingContext, SamplingParams, TokenId, TokenLogprob,
};

use super::random::Random;
use super::select::most_likely_first;
use super::{Candidate, Candidates, SamplingStep, StepContext, steps};

/// Applies every field of [`SamplingParams`] and custom steps to logits; identical for every engine.
///
/// The steps run in the order that [`SamplingParams`] documents; [`step_names`](Self::step_names) lists the active
/// ones. Ties go to the lowest id.
///
/// Sampling is stateless: the random number for the token at position `n` is the first one of stream `n` of the ChaCha8
/// generator seeded with `seed`, and the sampled token is the first one, ordered by id, at which the cumulative
/// probability exceeds that number.
///
/// ```
/// use mlxcel_session::{HostSampler, LogitsSampler, SamplingContext, SamplingParams};
///
/// let sampler = HostSampler::new(SamplingParams::greedy().with_temperature(0.8).with_top_k(2))?;
/// let context = SamplingContext::new(&[1, 2], 1);
/// let token = sampler.sample(&[0.0, 3.0, 2.5], &context)?;
/// assert!([1, 2].contains(&token.token));
/// assert_eq!(token, sampler.sample(&[0.0, 3.0, 2.5], &context)?);
/// assert_eq!(sampler.distribution(&[0.0, 3.0, 2.5], &context)?.len(), 2);
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostSampler {
    params: SamplingParams,
    /// What changes logits, the application's own steps last.
    pub(super) logits: Vec<Arc<dyn SamplingStep>>,
    /// What filters a draw.
    pub(super) draw: Vec<Arc<dyn SamplingStep>>,
    pub(super) random: Random,
}

impl HostSampler {
    /// A sampler for `params`.
    ///
    /// # Errors
    ///
    /// The errors of [`SamplingParams::validate`].
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        let [logits, draw] = steps::of(&params);
        let random = Random::new(params.seed);
        Ok(Self { params, logits, draw, random })
    }

    /// Adds a custom step after those added before.
    #[must_use]
    pub fn with_step(mut self, step: Arc<dyn SamplingStep>) -> Self {
        self.logits.push(step);
        self
    }

    /// The names of the steps, in the order in which they run.
    pub fn step_names(&self) -> Vec<&str> {
        let draw = if self.params.temperature > 0.0 { &self.draw[..] } else { &[] };
        self.logits.iter().chain(draw).map(|step| step.name()).collect()
    }

    /// The tokens that can be sampled with their probabilities, ordered by id; only the most likely token if the
    /// temperature is 0.
    ///
    /// # Errors
    ///
    /// The errors of [`sample`](LogitsSampler::sample).
    pub fn distribution(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<Vec<(TokenId, f64)>> {
        let candidates = self.candidates(logits, context)?;
        let (mut weights, total) = weights(&candidates);
        weights.iter_mut().for_each(|(_, weight)| *weight /= total);
        Ok(weights)
    }

    /// The candidates for the draw, with finite scores.
    fn candidates(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<Candidates> {
        let mut candidates = self.scores(logits, context)?;
        let step = StepContext::new(context, &self.random);
        if self.params.temperature > 0.0 {
            self.draw.iter().try_for_each(|filter| filter.apply(&mut candidates, &step))?;
        } else {
            candidates.keep(candidates.best().into_iter().collect());
        }
        Ok(candidates)
    }

    /// The logits as bias, penalties and the application's own steps leave them.
    pub(super) fn scores(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<Candidates> {
        let mut candidates = Candidates::new(logits)?;
        let step = StepContext::new(context, &self.random);
        self.logits.iter().try_for_each(|change| change.apply(&mut candidates, &step))?;
        candidates.settle()?;
        Ok(candidates)
    }
}

impl LogitsSampler for HostSampler {
    fn sample(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<SampledToken> {
        let candidates = self.candidates(logits, context)?;
        let (weights, total) = weights(&candidates);
        let (token, weight) = draw(&weights, total * self.random.uniform(context.tokens.len(), 0));
        let own = OwnDistribution::new(logits);
        Ok(SampledToken::new(token, own.logprob(token))
            .with_drawn_logprob((weight / total).ln() as f32)
            .with_top(own.top(context.top)))
    }
}

/// The weight of each candidate relative to the most likely, and their sum.
fn weights(candidates: &Candidates) -> (Vec<(TokenId, f64)>, f64) {
    let list = candidates.as_slice();
    let best = list.iter().map(|candidate| candidate.score).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<_> = list.iter().map(|c| (c.token, (c.score - best).exp())).collect();
    let total = weights.iter().map(|(_, weight)| weight).sum();
    (weights, total)
}

/// The token at which the summed weights pass `target`, and its weight.
fn draw(weights: &[(TokenId, f64)], target: f64) -> (TokenId, f64) {
    let mut sum = 0.0;
    let passed = weights.iter().find(|(_, weight)| {
        sum += weight;
        target < sum
    });
    // Rounding may leave the sum a little below its total. There is always one.
    passed.or(weights.last()).copied().unwrap_or_default()
}

/// What the model itself makes of the next token: the softmax of its logits.
struct OwnDistribution<'a> {
    logits: &'a [f32],
    /// The logarithm of the sum of their exponentials.
    total: f64,
}

impl<'a> OwnDistribution<'a> {
    fn new(logits: &'a [f32]) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // The exponentials are most of a token's cost, and a log probability has no more digits than a float.
        let sum: f64 = logits.iter().map(|&logit| f64::from((logit - most).exp())).sum();
        Self { logits, total: f64::from(most) + sum.ln() }
    }

    /// The natural log probability of `token`.
    fn logprob(&self, token: TokenId) -> f32 {
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        (f64::from(logit) - self.total) as f32
    }

    /// The `count` most likely tokens, most likely first.
    fn top(&self, count: u16) -> Vec<TokenLogprob> {
        let all = (0..).zip(self.logits).map(|(token, &logit)| Candidate::new(token, f64::from(logit)));
        most_likely_first(all, usize::from(count))
            .into_iter()
            .map(|Candidate { token, .. }| TokenLogprob { token, logprob: self.logprob(token) })
            .collect()
    }
}
