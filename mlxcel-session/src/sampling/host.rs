//! The host sampler: from logits to a token.

use std::sync::Arc;

use mlxcel_core::{
    Distribution, LogitsSampler, Result, SampledToken, SamplingContext, SamplingParams, SamplingPlace,
    SamplingPlan, TokenChoice, TokenId,
};

use super::random::Random;
use super::{Candidates, SamplingStep, StepContext, steps};

/// Applies every field of [`SamplingParams`] and custom steps to logits; identical for every engine.
///
/// The steps run in the order that [`SamplingParams`] documents; [`step_names`](Self::step_names) lists the
/// active ones. Ties go to the lowest id.
///
/// Sampling is stateless: the random number for the token at position `n` is the first one of stream `n` of
/// the ChaCha8 generator seeded with `seed`, and the sampled token is the first one, ordered by id, at which
/// the cumulative probability exceeds that number.
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
    /// What filters a draw; empty at temperature 0.
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

    /// What chooses the tokens of a generation by `plan`: a sampler with these custom steps, or the engine.
    pub(crate) fn choice(plan: SamplingPlan, steps: &[Arc<dyn SamplingStep>]) -> Result<TokenChoice> {
        if plan.place() != SamplingPlace::Host {
            return Ok(TokenChoice::Engine(plan));
        }
        let sampler = Self::new(plan.params().clone())?;
        Ok(TokenChoice::Host(Box::new(steps.iter().cloned().fold(sampler, Self::with_step))))
    }

    /// Adds a custom step after those added before.
    #[must_use]
    pub fn with_step(mut self, step: Arc<dyn SamplingStep>) -> Self {
        self.logits.push(step);
        self
    }

    /// The names of the steps, in the order in which they run.
    pub fn step_names(&self) -> Vec<&str> {
        self.logits.iter().chain(&self.draw).map(|step| step.name()).collect()
    }

    /// The tokens that can be sampled with their probabilities, ordered by id; only the most likely token if
    /// the temperature is 0.
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
        let mut candidates = match self.first_count(context) {
            Some(count) => Candidates::most_likely(logits, count)?,
            None => self.scores(logits, context)?,
        };
        let step = StepContext::new(context, &self.random);
        if self.params.temperature > 0.0 {
            self.draw.iter().try_for_each(|filter| filter.apply(&mut candidates, &step))?;
        } else {
            candidates.keep(candidates.best().into_iter().collect());
        }
        Ok(candidates)
    }

    /// How many of the most likely tokens are enough for the steps: `top_k`, if nothing before it changes the
    /// order of tokens. A fixed temperature does not.
    fn first_count(&self, context: &SamplingContext<'_>) -> Option<usize> {
        let SamplingParams { allowed_tokens, forbidden_tokens, .. } = &self.params;
        let limited = context.mask.is_some() || allowed_tokens.is_some() || !forbidden_tokens.is_empty();
        // The step of limits is always there.
        let unchanged = !limited && self.logits.len() == 1;
        let mut filters = self.draw.iter().map(|step| step.name()).skip_while(|name| *name == "temperature");
        let first = filters.next() == Some("top_k");
        (unchanged && first).then_some(self.params.top_k? as usize)
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
        let own = Distribution::new(logits)?;
        Ok(own.sampled(token, context.top).with_drawn_logprob((weight / total).ln() as f32))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_tokens_are_enough_where_nothing_before_top_k_reorders() {
        let context = SamplingContext::new(&[1, 2], 1);
        let count = |params: SamplingParams| HostSampler::new(params).unwrap().first_count(&context);
        let drawn = || SamplingParams::greedy().with_temperature(0.8);
        assert_eq!(count(drawn().with_top_k(40)), Some(40));
        assert_eq!(count(drawn().with_temperature(1.0).with_top_k(7).with_top_p(0.9)), Some(7));
        assert_eq!(count(drawn().with_top_p(0.9)), None);
        assert_eq!(count(drawn().with_top_k(40).with_repetition_penalty(1.1)), None);
        assert_eq!(count(SamplingParams::greedy().with_top_k(40)), None);
        // The whole of the distribution and a part of it give the same draw.
        let logits: Vec<f32> = (0..1000_u32).map(|i| (i * 7919 % 97) as f32 / 9.0).collect();
        let sampler = HostSampler::new(drawn().with_top_k(13)).unwrap();
        let mut whole = sampler.scores(&logits, &context).unwrap();
        let step = StepContext::new(&context, &sampler.random);
        sampler.draw.iter().for_each(|filter| filter.apply(&mut whole, &step).unwrap());
        assert_eq!(sampler.candidates(&logits, &context).unwrap(), whole);
    }

    #[test]
    fn a_draw_is_the_first_token_at_which_the_weights_pass_the_target() {
        let weights = [(3, 0.0), (5, 1.0), (7, 1.0)];
        assert_eq!([0.0, 0.5, 1.0, 2.0].map(|target| draw(&weights, target).0), [5, 5, 7, 7]);
    }
}
