//! Token counts and timings of a generation.

use std::time::Duration;

/// Token counts and timings of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt; in a conversation, including all earlier turns.
    pub prompt_tokens: usize,
    /// How many of them came from a cache and were not computed.
    pub reused_tokens: usize,
    /// Tokens generated, without the stop token.
    pub generated_tokens: usize,
    /// Draft tokens that were verified; see [`Options::speculation`](crate::Options::speculation).
    pub drafted_tokens: usize,
    /// How many of them were accepted.
    pub accepted_tokens: usize,
    /// Time in the queue before the first row; zero for a stream with its own session.
    pub queued: Duration,
    /// Time for the prompt, up to the first token.
    pub prefill: Duration,
    /// Time for the tokens after the first.
    pub decode: Duration,
    /// Time for compiling programs on their first use; not included in `prefill` and `decode`.
    pub compile: Duration,
    /// Time from the request to its first token: queueing, compiling and computing. `None` before that
    /// token.
    pub time_to_first_token: Option<Duration>,
}

impl Usage {
    /// The mean time per token after the first; `None` before the second.
    pub fn time_per_token(&self) -> Option<Duration> {
        let tokens = u32::try_from(self.generated_tokens.checked_sub(1)?).ok()?;
        self.decode.checked_div(tokens)
    }

    /// Tokens per second after the first; `None` before the second.
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.time_per_token().map(|time| 1.0 / time.as_secs_f64())
    }

    /// Adds the time of a step, of which `compile` was compiling.
    pub(crate) fn spend(&mut self, step: Duration, compile: Duration) {
        self.compile += compile;
        let phase = if self.generated_tokens == 0 { &mut self.prefill } else { &mut self.decode };
        *phase += step.saturating_sub(compile);
    }

    /// Counts a token with the time spent so far.
    pub(crate) fn count_token(&mut self) {
        self.generated_tokens += 1;
        self.time_to_first_token.get_or_insert(self.queued + self.prefill + self.compile);
    }
}
