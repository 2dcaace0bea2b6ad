//! What a generation took.

use std::time::Duration;

/// What a generation took: tokens, and where its time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt; in a conversation, with all that was said before.
    pub prompt_tokens: usize,
    /// How many of them were not computed, since a cache held them.
    pub reused_tokens: usize,
    /// Tokens generated, without the stop token.
    pub generated_tokens: usize,
    /// Tokens that were guessed ahead and verified; see [`Options::speculation`](crate::Options::speculation).
    pub drafted_tokens: usize,
    /// How many of those were right.
    pub accepted_tokens: usize,
    /// Waiting before the first row was computed; zero for a stream with a session of its own.
    pub queued: Duration,
    /// Computing the prompt, up to the first token.
    pub prefill: Duration,
    /// Computing the tokens after the first.
    pub decode: Duration,
    /// Compiling programs that were needed for the first time; not part of `prefill` and `decode`.
    pub compile: Duration,
    /// From the request to its first token: waiting, compiling and computing. None before that token.
    pub time_to_first_token: Option<Duration>,
}

impl Usage {
    /// The mean time of a token after the first; none before the second.
    pub fn time_per_token(&self) -> Option<Duration> {
        let tokens = u32::try_from(self.generated_tokens.checked_sub(1)?).ok()?;
        self.decode.checked_div(tokens)
    }

    /// Tokens a second after the first; none before the second.
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.time_per_token().map(|time| 1.0 / time.as_secs_f64())
    }

    /// Adds the time of a step, of which `compile` was compiling.
    pub(crate) fn spend(&mut self, step: Duration, compile: Duration) {
        self.compile += compile;
        let phase = if self.generated_tokens == 0 { &mut self.prefill } else { &mut self.decode };
        *phase += step.saturating_sub(compile);
    }

    /// Counts a token that came by what was spent so far.
    pub(crate) fn count_token(&mut self) {
        self.generated_tokens += 1;
        self.time_to_first_token.get_or_insert(self.queued + self.prefill + self.compile);
    }
}
