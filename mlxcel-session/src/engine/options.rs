//! Options of an engine.

use std::num::NonZero;

use mlxcel_core::{Capabilities, Error, ErrorKind, Result, setters};

/// Options of an [`Engine`](super::Engine); start from [`EngineOptions::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The length of the queue: how many requests may wait while all sequences are taken. Further ones are
    /// rejected. Defaults to 256.
    pub queue: usize,
    /// How many requests run at once. The maximum and the default is [`Capabilities::sequences`].
    pub sequences: Option<usize>,
    /// The maximum number of tokens per step. It must exceed [`sequences`](Self::sequences), so that prompts
    /// progress while requests decode. Defaults to one token per sequence plus one prompt chunk, so that
    /// decoding requests wait for at most one chunk.
    pub step_tokens: Option<usize>,
    /// How many unread tokens a request may have before it is paused. Defaults to 64.
    pub unread_tokens: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { queue: 256, sequences: None, step_tokens: None, unread_tokens: 64 }
    }
}

impl EngineOptions {
    setters! {
        /// Sets the length of the queue.
        with_queue(requests: usize) => queue = requests;
        /// Sets how many requests run at once.
        with_sequences(sequences: usize) => sequences = Some(sequences);
        /// Sets the maximum number of tokens per step.
        with_step_tokens(tokens: usize) => step_tokens = Some(tokens);
        /// Sets how many unread tokens a request may have before it is paused.
        with_unread_tokens(tokens: usize) => unread_tokens = tokens;
    }

    /// The resolved options for an engine.
    pub(super) fn limits(&self, capabilities: &Capabilities) -> Result<Limits> {
        let refuse = |field: &'static str, value: usize, message: &'static str| {
            Error::new(ErrorKind::InvalidInput, "start engine", message)
                .with_context("field", field)
                .with_context("value", value)
        };
        let chunk = capabilities.prompt_chunk.min(LONGEST_CHUNK);
        let sequences = self.sequences.unwrap_or(capabilities.sequences);
        if sequences == 0 || sequences > capabilities.sequences {
            let message = "sequences must be from 1 to what the engine supports";
            return Err(refuse("sequences", sequences, message).with_context("limit", capabilities.sequences));
        }
        let step_tokens = self.step_tokens.unwrap_or(sequences.saturating_add(chunk));
        if step_tokens <= sequences {
            let message = "step_tokens must be greater than the number of sequences";
            return Err(refuse("step_tokens", step_tokens, message).with_context("sequences", sequences));
        }
        for (field, value) in [("queue", self.queue), ("unread_tokens", self.unread_tokens)] {
            if value == 0 {
                return Err(refuse(field, value, "it must be at least 1"));
            }
        }
        let (queue, unread_tokens) = (self.queue, self.unread_tokens);
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let kv_tokens = sequences.saturating_mul(capabilities.context);
        Ok(Limits { sequences, step_tokens, chunk, queue, unread_tokens, threads, kv_tokens })
    }
}

/// The most tokens of a prompt that are computed at once by an engine that takes any number in one pass.
const LONGEST_CHUNK: usize = 512;

/// The figures that a scheduler keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most requests with a sequence.
    pub(super) sequences: usize,
    /// The most tokens of a step.
    pub(super) step_tokens: usize,
    /// The tokens that the engine computes of a prompt in one pass.
    pub(super) chunk: usize,
    /// The most requests that wait.
    pub(super) queue: usize,
    /// The maximum number of unread tokens of a request.
    pub(super) unread_tokens: usize,
    /// The threads that draw tokens on the host.
    pub(super) threads: usize,
    /// The most tokens that all sequences hold together.
    pub(super) kv_tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_come_from_the_engine_and_larger_values_are_rejected() {
        let capabilities = Capabilities::new(4, 1024);
        let limits = EngineOptions::default().limits(&capabilities).unwrap();
        assert_eq!((limits.sequences, limits.step_tokens), (4, 4 + limits.chunk));
        let limits = EngineOptions::default().with_sequences(2).with_step_tokens(3).limits(&capabilities);
        assert_eq!(limits.map(|limits| (limits.sequences, limits.step_tokens)).unwrap(), (2, 3));
        let options = EngineOptions::default;
        for (wrong, field) in [
            (options().with_sequences(5), "sequences"),
            (options().with_sequences(0), "sequences"),
            (options().with_step_tokens(4), "step_tokens"),
            (options().with_queue(0), "queue"),
            (options().with_unread_tokens(0), "unread_tokens"),
        ] {
            let error = wrong.limits(&capabilities).unwrap_err();
            assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
        }
    }
}
