//! Drawing tokens on the host, from logits: the same for every engine.

use mlxcel_core::{
    Error, ErrorKind, LogitsSampler, Result, SampledToken, SamplingField, SamplingParams, TokenId,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Applies every field of [`SamplingParams`] to logits.
///
/// The steps come in the order of transformers: logit bias, repetition penalty, presence and frequency penalties; then, if the
/// temperature is above 0, temperature, top-k, top-p, min-p and the draw, each over what the one before left. Of equally
/// likely tokens the one with the lower id comes first.
///
/// The draw is stateless: for the token at position `n` it takes the first number of stream `n` of the ChaCha8 generator
/// seeded with `seed`, and gives the first token, in the order of ids, at which the summed probabilities pass that number.
///
/// ```
/// use mlxcel_session::{HostSampler, LogitsSampler, SamplingParams};
///
/// let mut params = SamplingParams::greedy();
/// params.temperature = 0.8;
/// params.top_k = Some(2);
/// let sampler = HostSampler::new(params)?;
/// let token = sampler.sample(&[0.0, 3.0, 2.5], &[1, 2], 1)?;
/// assert!([1, 2].contains(&token.token));
/// assert_eq!(token, sampler.sample(&[0.0, 3.0, 2.5], &[1, 2], 1)?);
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostSampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
}

/// A token that may be drawn, and its weight relative to the likeliest.
type Candidate = (TokenId, f64);

impl HostSampler {
    /// A sampler for `params`.
    ///
    /// # Errors
    ///
    /// Those of [`SamplingParams::validate`].
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        let rng = ChaCha8Rng::seed_from_u64(params.seed);
        Ok(Self { params, rng })
    }

    /// The logits after bias and penalties.
    fn scores(&self, logits: &[f32], tokens: &[TokenId], prompt_length: usize) -> Result<Vec<f64>> {
        let mut scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        for &(token, bias) in &self.params.logit_bias {
            let score = scores.get_mut(token as usize).ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, "sample", "the token is beyond the vocabulary")
                    .with_context("field", SamplingField::LogitBias.as_str())
                    .with_context("token", token)
                    .with_context("vocabulary", logits.len())
            })?;
            *score += f64::from(bias);
        }
        if let Some(penalty) = self.params.repetition_penalty.filter(|&penalty| penalty != 1.0) {
            let penalty = f64::from(penalty);
            for (token, _) in counts(tokens) {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
                }
            }
        }
        let presence = f64::from(self.params.presence_penalty.unwrap_or(0.0));
        let frequency = f64::from(self.params.frequency_penalty.unwrap_or(0.0));
        if presence != 0.0 || frequency != 0.0 {
            for (token, count) in counts(tokens.get(prompt_length..).unwrap_or_default()) {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score -= presence + frequency * count as f64;
                }
            }
        }
        Ok(scores)
    }

    /// The tokens that may be drawn, in the order of their ids.
    fn candidates(&self, scores: &[f64], best: f64) -> Vec<Candidate> {
        let temperature = f64::from(self.params.temperature);
        let weight = |score: f64| {
            // An infinite bias leaves nothing beside it.
            if score == best { 1.0 } else { ((score - best) / temperature).exp() }
        };
        let mut candidates: Vec<Candidate> = (0..)
            .zip(scores)
            .map(|(token, &score)| (token, weight(score)))
            .filter(|&(_, weight)| weight > 0.0)
            .collect();
        let likelier = |a: &Candidate, b: &Candidate| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if let Some(k) = self.params.top_k.map(|k| k as usize).filter(|&k| k < candidates.len()) {
            candidates.select_nth_unstable_by(k, likelier);
            candidates.truncate(k);
        }
        if let Some(p) = self.params.top_p.filter(|&p| p < 1.0) {
            candidates.sort_unstable_by(likelier);
            let enough = f64::from(p) * total(&candidates);
            let mut before = 0.0;
            let kept = candidates
                .iter()
                .take_while(|&&(_, weight)| {
                    let kept = before < enough;
                    before += weight;
                    kept
                })
                .count();
            candidates.truncate(kept.max(1));
        }
        if let Some(p) = self.params.min_p {
            // The likeliest has weight 1.
            candidates.retain(|&(_, weight)| weight >= f64::from(p));
        }
        candidates.sort_unstable_by_key(|&(token, _)| token);
        candidates
    }

    /// A number in [0, 1) that depends on the seed and `position` alone.
    fn uniform(&self, position: usize) -> f64 {
        let mut rng = self.rng.clone();
        rng.set_stream(position as u64);
        // The 53 bits that a double holds.
        (rng.next_u64() >> 11) as f64 * (-53f64).exp2()
    }
}

impl LogitsSampler for HostSampler {
    fn sample(&self, logits: &[f32], tokens: &[TokenId], prompt_length: usize) -> Result<SampledToken> {
        let scores = self.scores(logits, tokens, prompt_length)?;
        let (token, best) = best_of(&scores)?;
        let token = if self.params.temperature > 0.0 {
            let candidates = self.candidates(&scores, best);
            draw(&candidates, self.uniform(tokens.len())).unwrap_or(token)
        } else {
            token
        };
        Ok(SampledToken::new(token, logprob(logits, token)))
    }
}

/// How often each of `tokens` occurs.
fn counts(tokens: &[TokenId]) -> impl Iterator<Item = (TokenId, usize)> {
    let mut sorted = tokens.to_vec();
    sorted.sort_unstable();
    let runs: Vec<_> = sorted.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    runs.into_iter()
}

/// The likeliest token and its score.
fn best_of(scores: &[f64]) -> Result<(TokenId, f64)> {
    let refuse = |kind, message: &'static str| Error::new(kind, "sample", message);
    let mut best = (0, f64::NEG_INFINITY);
    for (token, &score) in (0..).zip(scores) {
        if score.is_nan() {
            return Err(refuse(ErrorKind::Device, "a logit is not a number").with_context("token", token));
        }
        if score > best.1 {
            best = (token, score);
        }
    }
    if best.1 == f64::NEG_INFINITY {
        return Err(refuse(ErrorKind::InvalidInput, "no token is left to choose from"));
    }
    Ok(best)
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|&(_, weight)| weight).sum()
}

/// The candidate at which the summed weights pass the part `uniform` of their total.
fn draw(candidates: &[Candidate], uniform: f64) -> Option<TokenId> {
    let target = uniform * total(candidates);
    let mut sum = 0.0;
    let passed = candidates.iter().find(|&&(_, weight)| {
        sum += weight;
        target < sum
    });
    // Rounding may leave the sum a little below its total.
    passed.or(candidates.last()).map(|&(token, _)| token)
}

/// The natural log probability of `token` by the softmax of `logits`.
fn logprob(logits: &[f32], token: TokenId) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponent = |logit: f32| f64::from(logit) - f64::from(most);
    let sum: f64 = logits.iter().map(|&logit| exponent(logit).exp()).sum();
    logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| (exponent(logit) - sum.ln()) as f32)
}

#[cfg(test)]
mod transformers;

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits whose softmax is 0.4, 0.1, 0.3, 0.2.
    fn logits() -> [f32; 4] {
        [0.4, 0.1, 0.3, 0.2].map(f32::ln)
    }

    fn sampler(change: impl FnOnce(&mut SamplingParams)) -> HostSampler {
        let mut params = SamplingParams::greedy();
        params.temperature = 1.0;
        change(&mut params);
        HostSampler::new(params).unwrap()
    }

    /// The probability of each token that `sampler` leaves.
    fn distribution(sampler: &HostSampler) -> Vec<(TokenId, f64)> {
        let scores = sampler.scores(&logits(), &[], 0).unwrap();
        let candidates = sampler.candidates(&scores, best_of(&scores).unwrap().1);
        let sum = total(&candidates);
        candidates.into_iter().map(|(token, weight)| (token, weight / sum)).collect()
    }

    fn assert_distribution(change: impl FnOnce(&mut SamplingParams), expected: &[(TokenId, f64)]) {
        let found = distribution(&sampler(change));
        let tokens = |list: &[(TokenId, f64)]| list.iter().map(|&(token, _)| token).collect::<Vec<_>>();
        assert_eq!(tokens(&found), tokens(expected));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.1 - expected.1).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn each_filter_leaves_the_distribution_that_it_is_defined_by() {
        assert_distribution(|_| (), &[(0, 0.4), (1, 0.1), (2, 0.3), (3, 0.2)]);
        assert_distribution(|p| p.top_k = Some(2), &[(0, 4.0 / 7.0), (2, 3.0 / 7.0)]);
        // 0.4 + 0.3 does not reach 0.75, with 0.2 it does.
        assert_distribution(|p| p.top_p = Some(0.75), &[(0, 4.0 / 9.0), (2, 3.0 / 9.0), (3, 2.0 / 9.0)]);
        assert_distribution(|p| p.top_p = Some(0.01), &[(0, 1.0)]);
        assert_distribution(|p| p.min_p = Some(0.6), &[(0, 4.0 / 7.0), (2, 3.0 / 7.0)]);
        // Temperature 1/2 squares the probabilities: 16, 1, 9, 4 of 30.
        assert_distribution(
            |p| p.temperature = 0.5,
            &[(0, 16.0 / 30.0), (1, 1.0 / 30.0), (2, 9.0 / 30.0), (3, 4.0 / 30.0)],
        );
    }

    #[test]
    fn filters_build_on_one_another_in_the_order_of_transformers() {
        // Of the two that top-k leaves, the first alone has 4/7, so top-p at 0.55 leaves one; of all four it would leave two.
        assert_distribution(
            |p| {
                p.top_k = Some(2);
                p.top_p = Some(0.55);
            },
            &[(0, 1.0)],
        );
        // Temperature 2 comes before min-p: the ratio 3/4 becomes its root, 0.87.
        let (a, b) = (2.0, 3f64.sqrt());
        assert_distribution(
            |p| {
                p.temperature = 2.0;
                p.min_p = Some(0.8);
            },
            &[(0, a / (a + b)), (2, b / (a + b))],
        );
    }

    #[test]
    fn penalties_and_bias_change_the_logits_of_their_tokens() {
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
        let logits = [2.0, -2.0, 1.0, 0.5];
        let repetition = sampler(|p| p.repetition_penalty = Some(2.0));
        let scores = repetition.scores(&logits, &[0, 1, 1], 3).unwrap();
        assert_eq!(scores, [1.0, -4.0, 1.0, 0.5]);
        let both = sampler(|p| {
            p.presence_penalty = Some(0.5);
            p.frequency_penalty = Some(0.25);
        });
        // Token 0 is in the prompt only; 2 was generated twice, 3 once.
        let scores = both.scores(&logits, &[0, 2, 3, 2], 1).unwrap();
        close(scores[0], 2.0);
        close(scores[2], 0.0);
        close(scores[3], -0.25);
        let bias = sampler(|p| p.logit_bias = vec![(3, 1.5), (0, f32::NEG_INFINITY)]);
        assert_eq!(bias.scores(&logits, &[], 0).unwrap(), [f64::NEG_INFINITY, -2.0, 1.0, 2.0]);
        let only = sampler(|p| p.logit_bias = vec![(1, f32::INFINITY)]);
        assert!((0..20).all(|n| only.sample(&logits, &vec![0; n], 0).unwrap().token == 1));
    }

    #[test]
    fn draws_follow_the_distribution_and_depend_on_seed_and_position_alone() {
        let sampler = sampler(|p| p.seed = 7);
        let draws: Vec<_> =
            (0..4000).map(|n| sampler.sample(&logits(), &vec![0; n], 0).unwrap().token).collect();
        for (token, probability) in [(0, 0.4), (1, 0.1), (2, 0.3), (3, 0.2)] {
            let share = draws.iter().filter(|&&drawn| drawn == token).count() as f64 / draws.len() as f64;
            // Four standard deviations of a share of 4000 draws are at most 0.032.
            assert!((share - probability).abs() < 0.032, "token {token}: {share}");
        }
        // In another order, from a clone, after other draws: the same.
        let again = sampler.clone();
        assert!((0..100).rev().all(|n| again.sample(&logits(), &vec![1; n], 0).unwrap().token == draws[n]));
        let other = self::sampler(|p| p.seed = 8);
        assert!((0..100).any(|n| other.sample(&logits(), &vec![0; n], 0).unwrap().token != draws[n]));
    }

    #[test]
    fn the_draws_of_a_seed_stay_what_they_are() {
        // Recorded: a change here changes what applications say for a seed.
        let sampler = sampler(|p| p.seed = 42);
        let draws: Vec<_> =
            (0..12).map(|n| sampler.sample(&logits(), &vec![0; n], 0).unwrap().token).collect();
        assert_eq!(draws, [2, 2, 0, 0, 3, 0, 0, 0, 3, 2, 2, 3]);
    }

    #[test]
    fn without_temperature_the_likeliest_is_taken_and_its_logprob_is_the_models_own() {
        let greedy = sampler(|p| {
            p.temperature = 0.0;
            p.repetition_penalty = Some(10.0);
        });
        let token = greedy.sample(&logits(), &[2], 0).unwrap();
        assert_eq!(token.token, 0);
        assert!((f64::from(token.logprob) - 0.4f64.ln()).abs() < 1e-6);
        assert_eq!(greedy.sample(&[1.0, 1.0, 0.0], &[], 0).unwrap().token, 0, "of equals the lowest id");
    }

    #[test]
    fn logits_that_allow_no_choice_are_errors() {
        let kind = |logits: &[f32], bias: Vec<(TokenId, f32)>| {
            sampler(|p| p.logit_bias = bias).sample(logits, &[], 0).unwrap_err().kind()
        };
        assert_eq!(kind(&[0.0, f32::NAN], vec![]), ErrorKind::Device);
        assert_eq!(kind(&[0.0], vec![(0, f32::NEG_INFINITY)]), ErrorKind::InvalidInput);
        assert_eq!(kind(&[0.0], vec![(1, 1.0)]), ErrorKind::InvalidInput);
        assert_eq!(kind(&[], vec![]), ErrorKind::InvalidInput);
    }
}
