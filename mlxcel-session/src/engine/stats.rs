//! Counters and gauges of an engine, for metrics.

use std::time::Duration;

/// Counters of an [`Engine`](super::Engine) since its start, and gauges as of the last step. Requests with
/// adapters count here too; [`adapter_stats`](super::Engine::adapter_stats) has them by adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Gauge: requests waiting for a sequence, including preempted ones.
    pub queued: usize,
    /// Gauge: requests that hold a sequence.
    pub running: usize,
    /// Gauge: requests that hold a sequence and are paused for a slow reader.
    pub paused: usize,
    /// Requests accepted.
    pub submitted: u64,
    /// Requests rejected because the queue was full.
    pub refused: u64,
    /// Requests that finished: stop token, stop string, token limit or end of the context.
    pub finished: u64,
    /// Requests cancelled, or whose streams were dropped.
    pub cancelled: u64,
    /// Requests that ran into a time limit or deadline.
    pub timed_out: u64,
    /// Requests that failed with an error.
    pub failed: u64,
    /// How often a request was preempted and recomputed later: for memory, because its reader was slow while
    /// others waited, or because its client had more than its share.
    pub preempted: u64,
    /// How often a request was recomputed after a device fault.
    pub retried: u64,
    /// Prompt tokens of started requests.
    pub prompt_tokens: u64,
    /// Prompt tokens reused from earlier requests.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Draft tokens that were verified; see [`Options::speculation`](crate::Options::speculation).
    pub drafted_tokens: u64,
    /// How many of those were right.
    pub accepted_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Passes over the weights.
    pub passes: u64,
    /// Tokens computed, including prompts and recomputed tokens.
    pub computed_tokens: u64,
    /// Gauge: bytes of the open sequences: KV caches, and state of fixed size.
    pub kv_bytes: u64,
    /// Gauge: tokens that the open sequences hold in their KV caches.
    pub kv_tokens: usize,
    /// How many tokens the sequences can hold at most: the engine's sequences × the context. Memory may run
    /// out earlier.
    pub kv_token_limit: usize,
    /// Time spent in steps.
    pub step_time: Duration,
    /// Time spent compiling programs within steps.
    pub compile_time: Duration,
    /// The longest time that a request waited for its first sequence.
    pub longest_wait: Duration,
}

impl EngineStats {
    /// How full the KV caches are, from 0 to 1: [`kv_tokens`](Self::kv_tokens) as a fraction of
    /// [`kv_token_limit`](Self::kv_token_limit).
    ///
    /// ```
    /// let mut stats = mlxcel_session::EngineStats::default();
    /// assert_eq!(stats.kv_usage(), 0.0);
    /// (stats.kv_tokens, stats.kv_token_limit) = (1024, 4096);
    /// assert_eq!(stats.kv_usage(), 0.25);
    /// ```
    pub fn kv_usage(&self) -> f64 {
        self.kv_tokens as f64 / self.kv_token_limit.max(1) as f64
    }
}
