//! `no_repeat_ngram`: transformers' `NoRepeatNGramLogitsProcessor`, over prompt and generated text. Unlike
//! there it removes nothing where it would remove every token.

use super::*;

#[derive(Debug)]
struct NoRepeatNgram(usize);

pub(super) fn step(params: &SamplingParams) -> Step {
    some(params.no_repeat_ngram.map(|n| NoRepeatNgram(n as usize)))
}

impl SamplingStep for NoRepeatNgram {
    fn name(&self) -> &str {
        "no_repeat_ngram"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let tokens = context.tokens();
        if tokens.len() < self.0 {
            return Ok(());
        }
        // The next token would complete an n-gram that begins so.
        let begun = &tokens[tokens.len() + 1 - self.0..];
        let mut banned: Vec<TokenId> =
            tokens.windows(self.0).filter_map(|ngram| ngram.strip_prefix(begun)?.first().copied()).collect();
        banned.sort_unstable();
        if candidates.iter().any(|candidate| banned.binary_search(&candidate.token).is_err()) {
            banned.into_iter().for_each(|token| candidates.remove(token));
        }
        Ok(())
    }
}
