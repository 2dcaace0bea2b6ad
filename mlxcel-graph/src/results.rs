//! Converts logits on the host to the results of rows.

use mlxcel_core::{Error, ErrorKind, PositionResult, Result, SampledToken, TokenId, TokenLogprob, TokenMask};

/// Refuses logits that say nothing: one is not a number, or the largest is infinite.
pub(crate) fn check(logits: &[f32]) -> Result<()> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let is_number = logits.iter().fold(true, |all, logit| all & !logit.is_nan());
    if is_number && largest.is_finite() { Ok(()) } else { Err(Error::not_a_number("step")) }
}

/// The token that the program chose, with its log probability, which is finite unless the logits say nothing.
pub(crate) fn chosen((token, logprob): (TokenId, f32)) -> Result<SampledToken> {
    if logprob.is_finite() { Ok(SampledToken::new(token, logprob)) } else { Err(Error::not_a_number("step")) }
}

/// The natural log of the sum of exponentials of `logits`, summed in double precision.
fn log_sum_exp(logits: &[f32]) -> Result<f64> {
    check(logits)?;
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    Ok(largest + logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln())
}

/// The `count` most likely tokens, most likely first, ties go to the lowest id.
fn most_likely(logits: &[f32], total: f64, count: usize) -> Vec<TokenLogprob> {
    let mut order: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    let by_logit =
        |a: &TokenId, b: &TokenId| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let count = count.min(order.len());
    if count == 0 {
        return Vec::new();
    }
    order.select_nth_unstable_by(count - 1, by_logit);
    order.truncate(count);
    order.sort_unstable_by(by_logit);
    order.into_iter().map(|token| TokenLogprob { token, logprob: logprob(logits, total, token) }).collect()
}

fn logprob(logits: &[f32], total: f64, token: TokenId) -> f32 {
    (f64::from(logits[token as usize]) - total) as f32
}

/// The most likely token that `mask` allows, with the `top` most likely of all.
pub(crate) fn choose(logits: &[f32], mask: Option<&TokenMask>, top: u16) -> Result<SampledToken> {
    let total = log_sum_exp(logits)?;
    let allowed = (0..logits.len() as TokenId).filter(|&token| mask.is_none_or(|mask| mask.allows(token)));
    // Strictly greater, so that ties go to the lowest id.
    let best = allowed.reduce(
        |best, token| {
            if logits[token as usize] > logits[best as usize] { token } else { best }
        },
    );
    let token = best.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "step", "the token mask allows no token")
            .with_context("field", "mask")
    })?;
    let chosen = SampledToken::new(token, logprob(logits, total, token));
    Ok(chosen.with_top(most_likely(logits, total, usize::from(top))))
}

/// The result of a position from its logits, with the log probability of the token `following`.
pub(crate) fn position(logits: &[f32], following: Option<TokenId>, top: u16) -> Result<PositionResult> {
    let total = log_sum_exp(logits)?;
    let top = usize::from(top);
    let mut tokens = most_likely(logits, total, top.max(1));
    let best = tokens.first().copied().unwrap_or(TokenLogprob { token: 0, logprob: f32::NAN });
    tokens.truncate(top);
    Ok(PositionResult::new(best, following.map(|token| logprob(logits, total, token))).with_top(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_ties_go_to_the_lowest_id() {
        let chosen = choose(&[0.0, 2.0, 2.0, -1.0], None, 3).unwrap();
        assert_eq!(chosen.token, 1);
        assert_eq!(chosen.top.iter().map(|entry| entry.token).collect::<Vec<_>>(), [1, 2, 0]);
        let everything: f32 =
            choose(&[0.5, 1.5, -2.0], None, 3).unwrap().top.iter().map(|t| t.logprob.exp()).sum();
        assert!((everything - 1.0).abs() < 1e-6);
    }

    #[test]
    fn masks_limit_the_choice_and_not_the_log_probabilities() {
        let logits = [0.0, 2.0, 1.0];
        let free = choose(&logits, None, 3).unwrap();
        let masked = choose(&logits, Some(&TokenMask::allowing(3, [0, 2])), 3).unwrap();
        assert_eq!(masked.token, 2);
        assert_eq!(masked.top, free.top);
        assert_eq!(masked.logprob, free.top[1].logprob);
        let error = choose(&logits, Some(&TokenMask::none(3)), 0).unwrap_err();
        assert_eq!(error.context("field"), Some("mask"));
    }

    #[test]
    fn a_position_scores_the_token_that_follows() {
        let result = position(&[0.0, 1.0], Some(0), 0).unwrap();
        assert_eq!((result.best.token, result.top.len()), (1, 0));
        assert!((f64::from(result.following.unwrap()) - (1.0 / (1.0 + 1f64.exp())).ln()).abs() < 1e-6);
    }
    #[test]
    fn nan_logits_are_the_same_error_for_every_want() {
        let good = [0.0, f32::NEG_INFINITY, -3.0];
        assert!(
            check(&good).is_ok() && choose(&good, None, 3).is_ok() && position(&good, Some(0), 0).is_ok()
        );
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        for wrong in [[0.0, nan, 1.0], [nan; 3], [0.0, infinite, 1.0], [-infinite; 3]] {
            let mask = TokenMask::allowing(3, [0]);
            let errors = [
                check(&wrong).unwrap_err(),
                choose(&wrong, None, 0).unwrap_err(),
                choose(&wrong, Some(&mask), 2).unwrap_err(),
                position(&wrong, None, 0).unwrap_err(),
                chosen((0, nan)).unwrap_err(),
            ];
            for error in errors {
                assert_eq!((error.kind(), error.message()), (ErrorKind::Device, "a logit is not a number"));
            }
        }
    }
}
