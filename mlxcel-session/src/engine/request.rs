//! Requests of an engine.

use std::time::Instant;

use mlxcel_core::setters;

use crate::options::Options;
use crate::prompt::Prompt;

/// Whom a request counts for, in an engine that serves several clients.
///
/// Sequences and places in the queue are divided fairly between clients, and those of a client between its
/// groups: a client that submits hundreds of requests delays its own and not those of others. Which numbers
/// stand for whom is the application's choice: a server can use a sum of the client's address, and a number
/// for each of its requests that wants several answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// The client.
    pub client: u64,
    /// A group among the requests of the client.
    pub group: u64,
}

/// A request to an [`Engine`](super::Engine): a prompt with options, priority and deadline.
///
/// ```
/// use mlxcel_session::{Options, Request};
///
/// let request = Request::new("Once upon a time").with_options(Options::new(50)).with_priority(1);
/// assert_eq!(request.priority, 1);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The prompt.
    pub prompt: Prompt<'a>,
    /// Limits and sampling. Their time limit starts when the request is submitted.
    pub options: Options,
    /// Requests with a higher priority start first and their prompts are computed first; requests with a
    /// lower one wait for them. Defaults to 0.
    pub priority: i32,
    /// Whom it counts for; defaults to the same client for all.
    pub share: Share,
    /// When the request ends at the latest, waiting or running, with
    /// [`FinishReason::TimeLimit`](crate::FinishReason::TimeLimit). The time limit of the options also
    /// applies.
    pub deadline: Option<Instant>,
}

impl<'a> Request<'a> {
    /// A request with the default options.
    pub fn new(prompt: impl Into<Prompt<'a>>) -> Self {
        Self {
            prompt: prompt.into(),
            options: Options::default(),
            priority: 0,
            share: Share::default(),
            deadline: None,
        }
    }

    setters! {
        /// Sets limits and sampling.
        with_options(options: Options) => options = options;
        /// Sets the priority.
        with_priority(priority: i32) => priority = priority;
        /// Sets whom it counts for.
        with_share(share: Share) => share = share;
        /// Sets the deadline.
        with_deadline(deadline: Instant) => deadline = Some(deadline);
    }

    /// The options, with the deadline among them.
    pub(super) fn into_options(self, now: Instant) -> Options {
        let mut options = self.options;
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(now);
            options.time_limit = Some(options.time_limit.map_or(left, |limit| limit.min(left)));
        }
        options
    }
}
