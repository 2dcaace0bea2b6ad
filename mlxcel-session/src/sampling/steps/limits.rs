//! The allowed tokens: the generation's mask, `allowed_tokens` and `forbidden_tokens` (transformers'
//! `prefix_allowed_tokens_fn` and `suppress_tokens`).

use super::*;

/// Always there: a mask comes with each token.
pub(super) fn step(params: &SamplingParams) -> Step {
    let sorted = |mut tokens: Vec<TokenId>| {
        tokens.sort_unstable();
        tokens
    };
    let (allowed, forbidden) =
        (params.allowed_tokens.clone().map(sorted), sorted(params.forbidden_tokens.clone()));
    named("limits", move |candidates, context| {
        let size = candidates.vocabulary_size();
        if let Some(mask) = context.mask() {
            if mask.vocabulary_size() != size {
                let message = "a token mask must be made for this vocabulary";
                return Err(Error::new(ErrorKind::InvalidInput, "sample", message)
                    .with_context("field", "mask")
                    .with_context("vocabulary_size", size));
            }
            candidates.retain(|candidate| mask.allows(candidate.token));
        }
        let allowed_last = allowed.as_deref().and_then(<[TokenId]>::last);
        for (field, last) in [("allowed_tokens", allowed_last), ("forbidden_tokens", forbidden.last())] {
            if let Some(token) = last.filter(|&&token| token as usize >= size) {
                let message = "the token is outside the vocabulary";
                return Err(Error::new(ErrorKind::InvalidInput, "sample", message)
                    .with_context("field", field)
                    .with_context("token", token)
                    .with_context("vocabulary_size", size));
            }
        }
        if let Some(allowed) = &allowed {
            candidates.retain(|candidate| allowed.binary_search(&candidate.token).is_ok());
        }
        forbidden.iter().for_each(|&token| candidates.remove(token));
        Ok(())
    })
}
