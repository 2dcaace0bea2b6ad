//! The distribution of the next token.

use crate::error::{Error, ErrorKind, Result};
use crate::sampling::TokenMask;
use crate::step::{PositionResult, SampledToken, TokenLogprob};
use crate::token::TokenId;

/// How many sums run side by side, so that compilers vectorize them.
const LANES: usize = 16;

/// The distribution of the token at one position: the softmax of its logits.
///
/// Every engine, the host sampler and the scorer take log probabilities from here, so they agree whichever
/// path a token took. The sum of exponentials is in float64, of exponentials with a relative error below
/// 3e-7. Ties go to the lowest id.
///
/// ```
/// use mlxcel_core::{Distribution, TokenMask};
///
/// let distribution = Distribution::new(&[0.0, 2.0, 1.0])?;
/// let total = (1.0 + 2f64.exp() + 1f64.exp()).ln();
/// assert!((f64::from(distribution.logprob(1)) - (2.0 - total)).abs() < 1e-6);
/// assert_eq!(distribution.top(2).iter().map(|entry| entry.token).collect::<Vec<_>>(), [1, 2]);
/// assert_eq!(distribution.choose(Some(&TokenMask::allowing(3, [0, 2])), 0)?.token, 2);
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    logits: &'a [f32],
    /// The natural log of the sum of the exponentials of the logits.
    total: f64,
}

impl<'a> Distribution<'a> {
    /// The softmax of `logits`, one per token of the vocabulary.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Self::check).
    pub fn new(logits: &'a [f32]) -> Result<Self> {
        let most = greatest(logits)?;
        let mut sums = [0.0f64; LANES];
        let (whole, remainder) = logits.as_chunks::<LANES>();
        for logits in whole {
            for (sum, &logit) in sums.iter_mut().zip(logits) {
                *sum += f64::from(exponential(logit - most));
            }
        }
        let remainder: f64 = remainder.iter().map(|&logit| f64::from(exponential(logit - most))).sum();
        Ok(Self { logits, total: f64::from(most) + (sums.iter().sum::<f64>() + remainder).ln() })
    }

    /// Checks that `logits` make a distribution, without computing it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] if a logit is NaN, or the largest is infinite or missing.
    pub fn check(logits: &[f32]) -> Result<()> {
        greatest(logits).map(drop)
    }

    /// The natural log probability of `token`; minus infinity for one outside the vocabulary.
    pub fn logprob(&self, token: TokenId) -> f32 {
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        (f64::from(logit) - self.total) as f32
    }

    /// The `count` most likely tokens, most likely first.
    pub fn top(&self, count: u16) -> Vec<TokenLogprob> {
        let scores = (0..).zip(self.logits).map(|(token, &logit)| (token, f64::from(logit)));
        let entry = |(token, _)| TokenLogprob { token, logprob: self.logprob(token) };
        most_likely(scores, usize::from(count)).into_iter().map(entry).collect()
    }

    /// `token` as the result of a row, with its log probability and the `top` most likely tokens.
    pub fn sampled(&self, token: TokenId, top: u16) -> SampledToken {
        SampledToken::new(token, self.logprob(token)).with_top(self.top(top))
    }

    /// The most likely token of those that `mask` allows, with the `top` most likely of all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] with the field `mask` if it allows none.
    pub fn choose(&self, mask: Option<&TokenMask>, top: u16) -> Result<SampledToken> {
        let allowed = (0..).zip(self.logits).filter(|&(token, _)| mask.is_none_or(|mask| mask.allows(token)));
        let best = allowed.reduce(|best, next| if next.1 > best.1 { next } else { best });
        match best {
            Some((token, _)) => Ok(self.sampled(token, top)),
            None => Err(Error::new(ErrorKind::InvalidInput, "step", "the token mask allows no token")
                .with_context("field", "mask")),
        }
    }

    /// The result of a position whose next token is `following`, if known, with the `top` most likely tokens.
    pub fn position(&self, following: Option<TokenId>, top: u16) -> PositionResult {
        let mut most_likely = self.top(top.max(1));
        // There is one: an empty vocabulary makes no distribution.
        let best = most_likely.first().copied().unwrap_or(TokenLogprob { token: 0, logprob: 0.0 });
        most_likely.truncate(usize::from(top));
        PositionResult::new(best, following.map(|token| self.logprob(token))).with_top(most_likely)
    }
}

/// The `count` tokens with the highest scores, highest first, ties go to the lowest id. `scores` come in the
/// order of ids, and are read once.
///
/// Few candidates are kept at a time: once there are twice as many as wanted, the lower half is dropped.
pub fn most_likely(scores: impl IntoIterator<Item = (TokenId, f64)>, count: usize) -> Vec<(TokenId, f64)> {
    let mut kept = Vec::new();
    let mut least = None;
    // The loop is inside the iterator, where the compiler inlines what filters it.
    scores.into_iter().for_each(|(token, score)| {
        // A later token with an equal score has a higher id.
        if count == 0 || least.is_some_and(|least| score <= least) {
            return;
        }
        kept.push((token, score));
        if kept.len() >= count.saturating_mul(2) {
            kept.select_nth_unstable_by(count - 1, more_likely);
            kept.truncate(count);
            least = kept.last().map(|&(_, score)| score);
        }
    });
    kept.sort_unstable_by(more_likely);
    kept.truncate(count);
    kept
}

fn more_likely(a: &(TokenId, f64), b: &(TokenId, f64)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The largest logit, which is finite; an error if there is none or a logit is NaN.
fn greatest(logits: &[f32]) -> Result<f32> {
    let (mut most, mut nan) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (whole, remainder) = logits.as_chunks::<LANES>();
    for logits in whole {
        for ((most, nan), &logit) in most.iter_mut().zip(&mut nan).zip(logits) {
            *most = if logit > *most { logit } else { *most };
            *nan |= logit.is_nan();
        }
    }
    let most = most.iter().chain(remainder).copied().fold(f32::NEG_INFINITY, f32::max);
    let nan = nan.contains(&true) || remainder.iter().any(|logit| logit.is_nan());
    if nan || most.is_infinite() { Err(Error::not_a_number("step")) } else { Ok(most) }
}

/// e to the power of `x`, at most zero, with a relative error below 3e-7; below -86, where it is less than
/// 4.5e-38, that of -86.
///
/// The method is that of `expf` of Moshier's Cephes library, without branches: `x = n ln 2 + r`, a polynomial
/// in `r`, and `n` added to the exponent.
fn exponential(x: f32) -> f32 {
    /// The last bit of a number of this size counts ones, so adding it rounds.
    const LARGE: f32 = 12_582_912.0;
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = x.max(-86.0);
    let sum = x * std::f32::consts::LOG2_E + LARGE;
    let n = sum - LARGE;
    // ln 2 in two parts: n times the first, of few bits, is exact.
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let value = POLYNOMIAL.iter().fold(0.0, |value, coefficient| value * r + coefficient);
    let value = value * (r * r) + r + 1.0;
    f32::from_bits(value.to_bits().wrapping_add(sum.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_standard_library() {
        for i in 0..=860_000_u32 {
            let x = -(i as f32) / 10_000.0;
            let (got, wanted) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((got - wanted).abs() <= 3e-7 * wanted, "{x}: {got} is not {wanted}");
        }
        assert!(exponential(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn log_probabilities_are_those_of_a_softmax_in_double_precision() {
        for size in [1, 2, 15, 16, 17, 1000] {
            let logits: Vec<f32> = (0..size).map(|i| (i * 7919 % 97) as f32 / 3.0 - 40.0).collect();
            let total = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
            let distribution = Distribution::new(&logits).unwrap();
            for (token, &logit) in (0..).zip(&logits) {
                let wanted = f64::from(logit) - total;
                assert!((f64::from(distribution.logprob(token)) - wanted).abs() < 1e-6 + wanted.abs() * 1e-7);
            }
            assert_eq!(distribution.logprob(size as TokenId), f32::NEG_INFINITY);
        }
    }

    #[test]
    fn argmax_ties_go_to_the_lowest_id() {
        let logits = [0.0, 2.0, 2.0, -1.0];
        let chosen = Distribution::new(&logits).unwrap().choose(None, 3).unwrap();
        assert_eq!(chosen.token, 1);
        assert_eq!(chosen.top.iter().map(|entry| entry.token).collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn masks_limit_the_choice_and_not_the_log_probabilities() {
        let logits = [0.0, 2.0, 1.0];
        let distribution = Distribution::new(&logits).unwrap();
        let free = distribution.choose(None, 3).unwrap();
        let masked = distribution.choose(Some(&TokenMask::allowing(3, [0, 2])), 3).unwrap();
        assert_eq!((masked.token, &masked.top), (2, &free.top));
        assert_eq!(masked.logprob, free.top[1].logprob);
        let error = distribution.choose(Some(&TokenMask::none(3)), 0).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("mask")));
    }

    #[test]
    fn a_position_scores_the_token_that_follows() {
        let result = Distribution::new(&[0.0, 1.0]).unwrap().position(Some(0), 0);
        assert_eq!((result.best.token, result.top.len()), (1, 0));
        assert!((f64::from(result.following.unwrap()) - (1.0 / (1.0 + 1f64.exp())).ln()).abs() < 1e-6);
    }

    #[test]
    fn logits_that_are_no_distribution_are_device_errors() {
        let wide = |at: usize, logit: f32| {
            let mut logits = [0.0; 40];
            logits[at] = logit;
            logits
        };
        assert!(Distribution::new(&[0.0, f32::NEG_INFINITY, -3.0]).is_ok());
        for logit in [f32::NAN, f32::INFINITY] {
            for at in [0, 15, 16, 33, 39] {
                assert_eq!(Distribution::new(&wide(at, logit)).unwrap_err().kind(), ErrorKind::Device);
            }
        }
        for logits in [&[][..], &[f32::NEG_INFINITY; 3], &[f32::NAN; 3]] {
            assert_eq!(Distribution::check(logits).unwrap_err().kind(), ErrorKind::Device);
        }
    }

    #[test]
    fn the_most_likely_tokens_equal_sorting_and_truncating() {
        // Many ties, and runs in both directions.
        let score = |i: u32| f64::from((i * 7919) % 97) - f64::from(i % 5);
        let scores: Vec<_> = (0..1000).map(|token| (token, score(token))).collect();
        let mut sorted = scores.clone();
        sorted.sort_by(more_likely);
        for count in [0, 1, 2, 63, 500, 999, 1000, 5000] {
            assert_eq!(most_likely(scores.iter().copied(), count), sorted[..count.min(1000)], "{count}");
        }
    }
}
