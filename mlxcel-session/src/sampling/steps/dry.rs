//! `dry`, as llama.cpp's `llama_sampler_dry` (koboldcpp's pull request 982), with breakers of single tokens.

use std::collections::BTreeMap;

use mlxcel_core::Dry;

use super::*;

#[derive(Debug)]
struct DryStep {
    params: Dry,
    /// Sorted.
    breakers: Vec<TokenId>,
}

pub(super) fn step(params: &SamplingParams) -> Step {
    let step = params.dry.clone().map(|params| {
        let mut breakers = params.breakers.clone();
        breakers.sort_unstable();
        DryStep { params, breakers }
    });
    active(params, SamplingField::Dry, step)
}

impl DryStep {
    fn breaks(&self, token: TokenId) -> bool {
        self.breakers.binary_search(&token).is_ok()
    }

    /// The longest repetition that each token would continue with.
    fn repetitions(&self, tokens: &[TokenId]) -> BTreeMap<TokenId, usize> {
        let least = self.params.allowed_length as usize;
        let mut longest = BTreeMap::new();
        let reversed: Vec<TokenId> = tokens.iter().rev().copied().collect();
        // A repetition does not reach beyond a breaker.
        let most = reversed.iter().take_while(|&&token| !self.breaks(token)).count();
        for (distance, length) in prefix_lengths(&reversed).into_iter().enumerate().skip(1) {
            let length = length.min(most);
            let next = reversed[distance - 1];
            if length >= least && !self.breaks(next) {
                let entry = longest.entry(next).or_insert(length);
                *entry = length.max(*entry);
            }
        }
        longest
    }
}

impl SamplingStep for DryStep {
    fn name(&self) -> &str {
        "dry"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let Dry { multiplier, base, allowed_length, .. } = self.params;
        // The largest exponent at which float32 holds the power, as in llama.cpp: it keeps penalties finite.
        // There is none for a base of 1.
        const FLOAT_MAX_LOG: f64 = 88.722_839_1;
        let base = f64::from(base);
        let most = (FLOAT_MAX_LOG / base.ln()).floor();
        for (token, length) in self.repetitions(context.last_tokens(self.params.window)) {
            let exponent = ((length - allowed_length as usize) as f64).min(most);
            candidates.change(token, |score| score - f64::from(multiplier) * base.powf(exponent));
        }
        Ok(())
    }
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
