//! How to generate, and how to open a model.

use mlxcel_core::{CancelToken, LoadOptions, Precision, SamplingParams, TokenId};

/// How [`Model::open_with`](crate::Model::open_with) opens a model; start from [`OpenOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The engine, by its name for [`select_backend`](crate::select_backend); chosen there where none is given.
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
    /// Tokens that end the text besides the model's own stop tokens.
    pub stop_tokens: Vec<TokenId>,
    /// Goes on after the model's own stop tokens; they are then among the tokens, and still not in the text.
    pub ignore_stop: bool,
    /// Leaves special tokens out of the text. They are shown by default, as written in the vocabulary, so that nothing that the
    /// model says is lost; stop tokens never are.
    pub skip_special_tokens: bool,
    /// Stops the generation at the next token or chunk of the prompt.
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
            stop_tokens: Vec::new(),
            ignore_stop: false,
            skip_special_tokens: false,
            cancel: None,
        }
    }

    /// Sets everything about how tokens are chosen.
    #[must_use]
    pub fn with_sampling(mut self, sampling: SamplingParams) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets [`SamplingParams::temperature`].
    #[must_use]
    pub fn with_temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = temperature;
        self
    }

    /// Sets [`SamplingParams::top_k`].
    #[must_use]
    pub fn with_top_k(mut self, k: u32) -> Self {
        self.sampling.top_k = Some(k);
        self
    }

    /// Sets [`SamplingParams::top_p`].
    #[must_use]
    pub fn with_top_p(mut self, p: f32) -> Self {
        self.sampling.top_p = Some(p);
        self
    }

    /// Sets [`SamplingParams::min_p`].
    #[must_use]
    pub fn with_min_p(mut self, p: f32) -> Self {
        self.sampling.min_p = Some(p);
        self
    }

    /// Sets [`SamplingParams::repetition_penalty`].
    #[must_use]
    pub fn with_repetition_penalty(mut self, penalty: f32) -> Self {
        self.sampling.repetition_penalty = Some(penalty);
        self
    }

    /// Sets [`SamplingParams::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.sampling.seed = seed;
        self
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

    /// Sets what stops the generation.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}
