//! What an engine is asked for.

use std::time::Instant;

use crate::{Options, Prompt};

/// What an [`Engine`](super::Engine) is asked for: a prompt, how to continue it, and how urgent that is.
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
    /// What is continued.
    pub prompt: Prompt<'a>,
    /// How far, and how tokens are chosen. Their time limit begins when the request is submitted.
    pub options: Options,
    /// Requests of a larger priority are begun first, and their prompts are computed first; requests of a lesser one wait as long as
    /// there are such. 0 by default.
    pub priority: i32,
    /// When it ends at the latest, as [`FinishReason::TimeLimit`](crate::FinishReason::TimeLimit), waiting or running; the time limit
    /// of the options may end it before.
    pub deadline: Option<Instant>,
}

impl<'a> Request<'a> {
    /// A request with the default options.
    pub fn new(prompt: impl Into<Prompt<'a>>) -> Self {
        Self { prompt: prompt.into(), options: Options::default(), priority: 0, deadline: None }
    }

    /// Sets how far to generate and how tokens are chosen.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets when it ends at the latest.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
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
