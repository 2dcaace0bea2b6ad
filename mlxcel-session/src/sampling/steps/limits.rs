//! The allowed tokens: the generation's mask, `allowed_tokens` and `forbidden_tokens` (transformers'
//! `prefix_allowed_tokens_fn` and `suppress_tokens`).

use mlxcel_core::TokenMask;

use super::*;

#[derive(Debug)]
struct Limits {
    allowed: Option<TokenMask>,
    forbidden: Vec<TokenId>,
}

/// Always there: a mask comes with each token.
pub(super) fn step(params: &SamplingParams) -> Step {
    let allowed = params.allowed_tokens.as_deref().map(|tokens| {
        let size = tokens.iter().max().map_or(0, |&most| most as usize + 1);
        TokenMask::allowing(size, tokens.iter().copied())
    });
    some(Some(Limits { allowed, forbidden: params.forbidden_tokens.clone() }))
}

impl SamplingStep for Limits {
    fn name(&self) -> &str {
        "limits"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        if let Some(mask) = context.mask() {
            if mask.vocabulary_size() != candidates.vocabulary_size() {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "sample",
                    "a token mask must be made for this vocabulary",
                )
                .with_context("field", "mask")
                .with_context("vocabulary_size", candidates.vocabulary_size()));
            }
            candidates.retain(|candidate| mask.allows(candidate.token));
        }
        if let Some(allowed) = &self.allowed {
            if let Some(most) = allowed.vocabulary_size().checked_sub(1)
                && most >= candidates.vocabulary_size()
            {
                return Err(beyond("allowed_tokens", most as TokenId, candidates));
            }
            candidates.retain(|candidate| allowed.allows(candidate.token));
        }
        for &token in &self.forbidden {
            if token as usize >= candidates.vocabulary_size() {
                return Err(beyond("forbidden_tokens", token, candidates));
            }
            candidates.remove(token);
        }
        Ok(())
    }
}
