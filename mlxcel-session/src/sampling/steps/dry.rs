//! `dry`, as llama.cpp's `llama_sampler_dry` (koboldcpp's pull request 982), with breakers of single tokens.

use std::collections::BTreeMap;

use super::*;

/// The largest exponent at which float32 holds the power, as in llama.cpp: it keeps penalties finite.
const FLOAT_MAX_LOG: f64 = 88.722_839_1;

pub(super) fn step(params: &SamplingParams) -> Step {
    let mut dry = params.dry.clone()?;
    dry.breakers.sort_unstable();
    active(params, SamplingField::Dry, move |candidates, context| {
        let (base, least) = (f64::from(dry.base), dry.allowed_length as usize);
        // There is no largest exponent of a base of 1.
        let most = (FLOAT_MAX_LOG / base.ln()).floor();
        for (token, length) in repetitions(context.last_tokens(dry.window), least, &dry.breakers) {
            let exponent = ((length - least) as f64).min(most);
            candidates.change(token, |score| score - f64::from(dry.multiplier) * base.powf(exponent));
        }
        Ok(())
    })
}

/// The longest repetition that each token would continue with, of those of at least `least` tokens. The
/// `breakers` are sorted.
fn repetitions(tokens: &[TokenId], least: usize, breakers: &[TokenId]) -> BTreeMap<TokenId, usize> {
    let breaks = |token: TokenId| breakers.binary_search(&token).is_ok();
    let mut longest = BTreeMap::new();
    let reversed: Vec<TokenId> = tokens.iter().rev().copied().collect();
    // A repetition does not reach beyond a breaker.
    let most = reversed.iter().take_while(|&&token| !breaks(token)).count();
    for (distance, length) in prefix_lengths(&reversed).into_iter().enumerate().skip(1) {
        let length = length.min(most);
        let next = reversed[distance - 1];
        if length >= least && !breaks(next) {
            let entry = longest.entry(next).or_insert(length);
            *entry = length.max(*entry);
        }
    }
    longest
}

/// For each position of `tokens` how many tokens from there on are those that `tokens` begins with: the
/// Z-algorithm, in time proportional to their number.
fn prefix_lengths(tokens: &[TokenId]) -> Vec<usize> {
    let mut lengths = vec![0; tokens.len()];
    // The match that reaches farthest: where it begins and ends.
    let (mut left, mut right) = (0, 0);
    for start in 1..tokens.len() {
        let mut length = if start < right { lengths[start - left].min(right - start) } else { 0 };
        while start + length < tokens.len() && tokens[length] == tokens[start + length] {
            length += 1;
        }
        if start + length > right {
            (left, right) = (start, start + length);
        }
        lengths[start] = length;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dry_match_lengths_agree_with_a_plain_search() {
        for text in [&b"abcabcab"[..], b"aaaaa", b"abacabadabacaba", b"a", b"", b"aabaabaaab"] {
            let tokens: Vec<TokenId> = text.iter().copied().map(TokenId::from).collect();
            let plain = |start: usize| {
                tokens.iter().zip(&tokens[start..]).take_while(|(a, b)| start > 0 && a == b).count()
            };
            assert_eq!(prefix_lengths(&tokens), (0..tokens.len()).map(plain).collect::<Vec<_>>());
        }
    }

    #[test]
    fn long_repetitions_take_time_in_proportion_to_their_length() {
        // Comparing anew from each position would be a hundred billion comparisons.
        let tokens = vec![1; 500_000];
        assert!(prefix_lengths(&tokens).into_iter().skip(1).eq((1..tokens.len()).rev()));
    }
}
