//! `no_repeat_ngram`: transformers' `NoRepeatNGramLogitsProcessor`, over prompt and generated text. Unlike
//! there it removes nothing where it would remove every token.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let n = params.no_repeat_ngram? as usize;
    active(params, SamplingField::NoRepeatNgram, move |candidates, context| {
        let tokens = context.tokens();
        if tokens.len() < n {
            return Ok(());
        }
        // The next token would complete an n-gram that begins so.
        let begun = &tokens[tokens.len() + 1 - n..];
        let mut banned: Vec<TokenId> =
            tokens.windows(n).filter_map(|ngram| ngram.strip_prefix(begun)?.first().copied()).collect();
        banned.sort_unstable();
        if candidates.iter().any(|candidate| banned.binary_search(&candidate.token).is_err()) {
            banned.into_iter().for_each(|token| candidates.remove(token));
        }
        Ok(())
    })
}
