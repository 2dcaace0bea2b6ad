//! How to generate, and how to open a model.

mod sampling;

use std::sync::Arc;
use std::time::Duration;

use mlxcel_core::{CancelToken, LoadOptions, Precision, SamplingParams, TokenId};

use crate::{ChatOptions, ConstraintSource, SamplingStep, Speculation};

/// How [`Model::open_with`](crate::Model::open_with) opens a model; start from [`OpenOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The engine, by its name for [`select_backend`](crate::select_backend); defaults to the choice made there.
    pub backend: Option<String>,
    /// What the engine is asked for: precision, capacity, threads, progress and so on.
    pub load: LoadOptions,
}

impl OpenOptions {
    /// Sets the engine by its name.
    #[must_use]
    pub fn with_backend(mut self, name: impl Into<String>) -> Self {
        self.backend = Some(name.into());
        self
    }

    /// Sets which rounding to run with.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.load.precision = precision;
        self
    }

    /// Sets everything that the engine is asked for.
    #[must_use]
    pub fn with_load(mut self, load: LoadOptions) -> Self {
        self.load = load;
        self
    }
}

/// How to generate: how far, and how tokens are chosen. The default is greedy, up to 512 tokens.
///
/// ```
/// use mlxcel_session::Options;
///
/// let options = Options::new(100).with_temperature(0.7).with_top_p(0.9).with_seed(1);
/// assert_eq!(options.sampling.active_fields().to_string(), "temperature, top_p");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How each token is chosen.
    pub sampling: SamplingParams,
    /// The application's own sampling steps, in the order in which they run.
    pub steps: Vec<Arc<dyn SamplingStep>>,
    /// Tokens that end the text besides the model's own stop tokens.
    pub stop_tokens: Vec<TokenId>,
    /// Goes on after the model's own stop tokens; they are then among the tokens, and still not in the text.
    pub ignore_stop: bool,
    /// Leaves special tokens out of the text. They are shown by default, as written in the vocabulary, so that nothing that the
    /// model says is lost; stop tokens never are. Those that mark [reasoning](crate::Tokenizer::reasoning) are shown in any case.
    pub skip_special_tokens: bool,
    /// Strings that end the text; no part of one is given. None may be empty.
    pub stop_strings: Vec<String>,
    /// What limits the text, token by token: a grammar, such as that of a JSON schema. The text ends as
    /// [`FinishReason::Stop`](crate::FinishReason::Stop) where it is whole; where another limit ends it, its beginning is all there is.
    pub constraint: Option<Arc<dyn ConstraintSource>>,
    /// How tokens are guessed ahead, so that one pass brings several; no text changes by it. By default, and under a
    /// [`constraint`](Self::constraint), nothing is guessed.
    pub speculation: Option<Speculation>,
    /// How long the generation may take, waiting included; it ends at the next token or chunk of the prompt after that.
    pub time_limit: Option<Duration>,
    /// How many of the most likely tokens are reported at each place.
    pub top_logprobs: u16,
    /// How messages become a prompt.
    pub chat: ChatOptions,
    /// Stops the generation at the next token or chunk of the prompt. A token cancels once: options that hold a cancelled one start
    /// no further generation.
    pub cancel: Option<CancelToken>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new(512)
    }
}

impl Options {
    /// Greedy, up to `max_tokens` tokens.
    pub fn new(max_tokens: usize) -> Self {
        Self {
            max_tokens,
            sampling: SamplingParams::greedy(),
            steps: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_stop: false,
            skip_special_tokens: false,
            stop_strings: Vec::new(),
            constraint: None,
            speculation: None,
            time_limit: None,
            top_logprobs: 0,
            chat: ChatOptions::default(),
            cancel: None,
        }
    }

    /// Sets the tokens that end the text besides the model's own.
    #[must_use]
    pub fn with_stop_tokens(mut self, tokens: impl Into<Vec<TokenId>>) -> Self {
        self.stop_tokens = tokens.into();
        self
    }

    /// Sets whether to go on after the model's own stop tokens.
    #[must_use]
    pub fn with_ignore_stop(mut self, ignore: bool) -> Self {
        self.ignore_stop = ignore;
        self
    }

    /// Sets whether special tokens are left out of the text.
    #[must_use]
    pub fn with_skip_special_tokens(mut self, skip: bool) -> Self {
        self.skip_special_tokens = skip;
        self
    }

    /// Adds a string that ends the text.
    #[must_use]
    pub fn with_stop_string(mut self, string: impl Into<String>) -> Self {
        self.stop_strings.push(string.into());
        self
    }

    /// Sets what limits the text, such as a grammar.
    #[must_use]
    pub fn with_constraint(mut self, constraint: impl ConstraintSource + 'static) -> Self {
        self.constraint = Some(Arc::new(constraint));
        self
    }

    /// Sets the grammar that the text has to follow. Needs the feature `structured`.
    #[cfg(feature = "structured")]
    #[must_use]
    pub fn with_grammar(self, grammar: crate::Grammar) -> Self {
        self.with_constraint(grammar)
    }

    /// Sets how tokens are guessed ahead.
    #[must_use]
    pub fn with_speculation(mut self, speculation: Speculation) -> Self {
        self.speculation = Some(speculation);
        self
    }

    /// Sets how long the generation may take, waiting included.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Sets how many of the most likely tokens are reported at each place.
    #[must_use]
    pub fn with_top_logprobs(mut self, top: u16) -> Self {
        self.top_logprobs = top;
        self
    }

    /// Sets how messages become a prompt.
    #[must_use]
    pub fn with_chat(mut self, chat: ChatOptions) -> Self {
        self.chat = chat;
        self
    }

    /// Sets what stops the generation.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}
