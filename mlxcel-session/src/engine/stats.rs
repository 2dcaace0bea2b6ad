//! What an engine has done and is doing, as a metrics page shows it.

use std::time::Duration;

/// What an [`Engine`](super::Engine) has done since it was started, and what it is doing now. The figures are those after the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Requests that wait for a sequence now, those that gave theirs up included.
    pub queued: usize,
    /// Requests that have a sequence now.
    pub running: usize,
    /// Of those with a sequence, the ones whose readers are behind.
    pub paused: usize,
    /// Requests that were taken.
    pub submitted: u64,
    /// Requests that the full queue refused.
    pub refused: u64,
    /// Requests that came to their end: a stop token, a stop text, their limit of tokens, the end of the context.
    pub finished: u64,
    /// Requests that were cancelled, or whose streams were dropped.
    pub cancelled: u64,
    /// Requests whose time was over.
    pub timed_out: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// How often a request gave its sequence up and was computed again later: since memory was short, or its reader behind while
    /// others waited.
    pub preempted: u64,
    /// How often a request was computed again after a device fault.
    pub retried: u64,
    /// Tokens of the prompts of the requests that were begun.
    pub prompt_tokens: u64,
    /// Of the tokens of prompts, those that an earlier request had computed.
    pub reused_tokens: u64,
    /// Tokens that were given to readers.
    pub generated_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Passes over the weights.
    pub passes: u64,
    /// Tokens that were computed, prompts and repeated ones included.
    pub computed_tokens: u64,
    /// Bytes of the open sequences now: KV caches, and what does not grow with positions.
    pub kv_bytes: u64,
    /// Time in steps.
    pub step_time: Duration,
    /// Time that compiling programs took within them.
    pub compile_time: Duration,
    /// The longest time that a request has waited for its first sequence.
    pub longest_wait: Duration,
}
