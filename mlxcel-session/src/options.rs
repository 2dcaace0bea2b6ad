//! Options of generation.

use std::sync::Arc;
use std::time::{Duration, Instant};

// Among them every type that a sampling parameter has.
use mlxcel_core::*;

use crate::chat::ChatOptions;
use crate::constraint::ConstraintSource;
use crate::model::Model;
use crate::sampling::SamplingStep;
use crate::speculation::Speculation;
#[cfg(feature = "structured")]
use crate::structured::Grammar;

/// Options of a generation: limits, sampling, chat template. The default is greedy decoding of up to 512
/// tokens.
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
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Custom sampling steps, in the order in which they run.
    pub steps: Vec<Arc<dyn SamplingStep>>,
    /// Stop tokens in addition to the model's own.
    pub stop_tokens: Vec<TokenId>,
    /// Continues after the model's own stop tokens. They then appear among the tokens, but not in the text.
    pub ignore_stop: bool,
    /// Omits special tokens from the text. By default they are included as spelled in the vocabulary, except
    /// stop tokens. Tokens that mark [reasoning](crate::Tokenizer::reasoning) are always included.
    pub skip_special_tokens: bool,
    /// Strings that end the text; they are not part of it, not even in part. None may be empty.
    pub stop_strings: Vec<String>,
    /// Constrained decoding, such as a grammar of a JSON schema. A complete text ends with
    /// [`FinishReason::Stop`](crate::FinishReason::Stop); if another limit ends the generation, the text is
    /// incomplete.
    pub constraint: Option<Arc<dyn ConstraintSource>>,
    /// Speculative decoding, which never changes the text. Off by default. Under a
    /// [`constraint`](Self::constraint) draft tokens are verified with the masks that it gives
    /// [ahead](crate::Constraint::masks_ahead).
    pub speculation: Option<Speculation>,
    /// The maximum duration from the call on, including time for the prompt and the constraint and time in a
    /// queue. The generation ends at the first token or prompt chunk after it.
    pub time_limit: Option<Duration>,
    /// How many of the most likely tokens are reported at each position.
    pub top_logprobs: u16,
    /// How the chat template renders messages.
    pub chat: ChatOptions,
    /// The adapter to generate with, of the same model; `None` for the model itself.
    pub adapter: Option<Adapter>,
    /// Cancels the generation at the next token or prompt chunk. A cancelled token stays cancelled: options
    /// that hold one start no further generation.
    pub cancel: Option<CancelToken>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new(512)
    }
}

impl Options {
    /// Greedy decoding of up to `max_tokens` tokens.
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
            adapter: None,
            cancel: None,
        }
    }

    setters! {
        /// Sets stop tokens in addition to the model's own.
        with_stop_tokens(tokens: impl Into<Vec<TokenId>>) => stop_tokens = tokens.into();
        /// Sets whether to continue after the model's own stop tokens.
        with_ignore_stop(ignore: bool) => ignore_stop = ignore;
        /// Sets whether special tokens are omitted from the text.
        with_skip_special_tokens(skip: bool) => skip_special_tokens = skip;
        /// Sets a constraint, such as a grammar.
        with_constraint(constraint: impl ConstraintSource + 'static) =>
            constraint = Some(Arc::new(constraint));
        /// Sets speculative decoding.
        with_speculation(speculation: Speculation) => speculation = Some(speculation);
        /// Sets the maximum duration, including time in a queue.
        with_time_limit(limit: Duration) => time_limit = Some(limit);
        /// Sets how many of the most likely tokens are reported at each place.
        with_top_logprobs(top: u16) => top_logprobs = top;
        /// Sets how the chat template renders messages.
        with_chat(chat: ChatOptions) => chat = chat;
        /// Sets the adapter to generate with, from [`Model::load_adapter`](crate::Model::load_adapter).
        with_adapter(adapter: &Adapter) => adapter = Some(adapter.clone());
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
        /// Sets all sampling parameters; custom steps are kept.
        with_sampling(sampling: SamplingParams) => sampling = sampling;
    }

    /// Sets [`SamplingParams::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.sampling = self.sampling.with_seed(seed);
        self
    }

    /// Sets a random seed, so that sampled text differs from run to run; see
    /// [`SamplingParams::with_random_seed`].
    #[must_use]
    pub fn with_random_seed(mut self) -> Self {
        self.sampling = self.sampling.with_random_seed();
        self
    }

    /// Adds a custom sampling step. Tokens are then sampled on the host.
    #[must_use]
    pub fn with_step(mut self, step: Arc<dyn SamplingStep>) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds a stop string.
    #[must_use]
    pub fn with_stop_string(mut self, string: impl Into<String>) -> Self {
        self.stop_strings.push(string.into());
        self
    }

    /// Sets a grammar as the constraint. Needs the feature `structured`.
    #[cfg(feature = "structured")]
    #[must_use]
    pub fn with_grammar(self, grammar: Grammar) -> Self {
        self.with_constraint(grammar)
    }

    /// When a generation that is requested now has to end. Ask for it first: what is done before the first
    /// token, such as compiling a grammar, takes of the time limit too.
    pub(crate) fn deadline(&self) -> Result<Option<Instant>> {
        let Some(limit) = self.time_limit else { return Ok(None) };
        if !Stopwatch::HAS_CLOCK {
            let message = "this platform has no clock; limit the text with max_tokens or a cancel token";
            return Err(Error::unsupported("limit the time of a generation", message));
        }
        // A limit beyond what the clock can tell is none.
        Ok(Instant::now().checked_add(limit))
    }
}

mlxcel_core::__sampling_builders!(Options.sampling);

impl Model {
    /// [`Options::default`] with the checkpoint's [`default_sampling`](Self::default_sampling).
    ///
    /// ```no_run
    /// let model = mlxcel_session::Model::open("models/qwen3-0.6b")?;
    /// let options = model.default_options().with_temperature(0.5).with_random_seed();
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    pub fn default_options(&self) -> Options {
        Options::default().with_sampling(self.default_sampling().clone())
    }
}
