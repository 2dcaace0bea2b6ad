//! Generating token after token, for every engine: the one decode loop of the crate family.

use crate::session::expect_token;
use crate::{
    CancelToken, Control, Error, ErrorKind, InferenceSession, Result, Row, RowResult, SampledToken,
    SamplingPlan, SequenceId, TokenId,
};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a stop token.
    Stop,
    /// As many tokens as were asked for are there, or the sequence is full.
    Length,
    /// A [`CancelToken`] or the caller stopped it.
    Cancelled,
}

impl FinishReason {
    /// The lower-case name: `stop`, `length`, `cancelled`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How far to generate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// The tokens that end the text; they are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Stops the generation at the next token or chunk.
    pub cancel: Option<CancelToken>,
}

impl GenerateOptions {
    /// At most `max_tokens`, with no stop token.
    pub fn new(max_tokens: usize) -> Self {
        Self { max_tokens, stop_tokens: Vec::new(), cancel: None }
    }

    /// Sets the tokens that end the text.
    #[must_use]
    pub fn with_stop_tokens(mut self, tokens: impl Into<Vec<TokenId>>) -> Self {
        self.stop_tokens = tokens.into();
        self
    }

    /// Sets what stops the generation.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

/// What was generated.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generation {
    /// The tokens after the prompt, without the stop token.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Draws tokens from logits on the host.
pub trait LogitsSampler: Send {
    /// The token to follow, from its logits (`[vocabulary]`) and all tokens of the sequence so far, the first
    /// `prompt_length` of which were the prompt. A function of its arguments alone.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from choosing.
    fn sample(&self, logits: &[f32], tokens: &[TokenId], prompt_length: usize) -> Result<SampledToken>;
}

/// Who chooses the tokens of a [`TokenStream`].
#[non_exhaustive]
pub enum TokenChoice {
    /// The engine.
    Engine(SamplingPlan),
    /// The host, from logits; needs [`Capabilities::logits`](crate::Capabilities::logits).
    Host(Box<dyn LogitsSampler>),
}

/// A running generation: an iterator over the tokens that follow a prompt.
///
/// The prompt is computed when the first token is asked for. The stop token is not given. After the end,
/// [`finish_reason`](Self::finish_reason) tells why; after an error there are no further tokens. The sequence is the
/// caller's: it is neither opened nor closed here, and holds the prompt and the given tokens but the last.
///
/// The session is borrowed (`&mut S`, `&mut dyn InferenceSession`) or owned (`Box<dyn InferenceSession>`), as the caller
/// likes.
pub struct TokenStream<S> {
    session: S,
    sequence: SequenceId,
    options: GenerateOptions,
    choice: TokenChoice,
    /// What the sequence held before, the prompt, and what was generated; kept whole because host samplers look back at it.
    tokens: Vec<TokenId>,
    /// How many of `tokens` were not generated here.
    prompt_length: usize,
    /// How many of `tokens` the sequence holds.
    fed: usize,
    finish: Option<FinishReason>,
    failed: bool,
}

impl<S: InferenceSession> TokenStream<S> {
    /// Starts a generation after `prompt` on an open sequence of `session`.
    ///
    /// A sequence that holds earlier tokens is continued by [`resume`](Self::resume) where the host chooses tokens: it
    /// looks back at them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an empty prompt, [`ErrorKind::CapacityExceeded`] for one that does not fit,
    /// [`ErrorKind::NotFound`] for a sequence that is not open, [`ErrorKind::Poisoned`] for a poisoned one.
    pub fn new(
        session: S,
        sequence: SequenceId,
        prompt: &[TokenId],
        options: GenerateOptions,
        choice: TokenChoice,
    ) -> Result<Self> {
        Self::resume(session, sequence, &[], prompt, options, choice)
    }

    /// As [`new`](Self::new), on a sequence that already holds the tokens of `history`.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn resume(
        session: S,
        sequence: SequenceId,
        history: &[TokenId],
        prompt: &[TokenId],
        options: GenerateOptions,
        choice: TokenChoice,
    ) -> Result<Self> {
        let state = session.state(sequence)?;
        if prompt.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "generate", "the prompt is empty"));
        }
        if prompt.len() > state.remaining() {
            return Err(Error::new(
                ErrorKind::CapacityExceeded,
                "generate",
                "the prompt does not fit into the context",
            )
            .with_context("prompt_tokens", prompt.len())
            .with_context("context", state.capacity)
            .with_context("used", state.position));
        }
        if let TokenChoice::Host(_) = choice {
            crate::Capabilities::require(session.capabilities().logits, "generate", "logits")?;
        }
        let prompt_length = history.len() + prompt.len();
        let choice = match choice {
            TokenChoice::Engine(plan) => TokenChoice::Engine(plan.with_prompt_length(prompt_length)),
            host => host,
        };
        Ok(Self {
            session,
            sequence,
            options,
            choice,
            tokens: [history, prompt].concat(),
            prompt_length,
            fed: history.len(),
            finish: None,
            failed: false,
        })
    }

    /// Why the generation ended; none while it runs or where it failed.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The tokens generated so far.
    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_length..]
    }

    /// The session that computes.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// Gives the session back; nothing more is generated.
    pub fn into_session(self) -> S {
        self.session
    }

    /// The next token, or none at the end.
    fn advance(&mut self) -> Result<Option<SampledToken>> {
        if self.generated().len() >= self.options.max_tokens {
            return Ok(self.end(FinishReason::Length));
        }
        let control = Control { cancel: self.options.cancel.as_ref() };
        if control.check("generate").is_err() {
            return Ok(self.end(FinishReason::Cancelled));
        }
        if self.session.state(self.sequence)?.remaining() == 0 {
            return Ok(self.end(FinishReason::Length));
        }
        let pending = &self.tokens[self.fed..];
        let row = match &self.choice {
            TokenChoice::Engine(plan) => Row::next(self.sequence, pending, plan),
            TokenChoice::Host(_) => Row::logits(self.sequence, pending),
        };
        let result = match self.session.prefill(row, &control) {
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                return Ok(self.end(FinishReason::Cancelled));
            }
            result => result?,
        };
        self.fed = self.tokens.len();
        let token = match (result, &self.choice) {
            (RowResult::Logits(logits), TokenChoice::Host(sampler)) => {
                sampler.sample(&logits, &self.tokens, self.prompt_length)?
            }
            (result, _) => expect_token(result)?,
        };
        if self.options.stop_tokens.contains(&token.token) {
            return Ok(self.end(FinishReason::Stop));
        }
        self.tokens.push(token.token);
        Ok(Some(token))
    }

    fn end(&mut self, reason: FinishReason) -> Option<SampledToken> {
        self.finish = Some(reason);
        None
    }
}

impl<S: InferenceSession> Iterator for TokenStream<S> {
    type Item = Result<SampledToken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finish.is_some() || self.failed {
            return None;
        }
        let item = self.advance().transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}

/// Generation in one call, for every session.
pub trait GenerateExt: InferenceSession {
    /// The likeliest continuation of `prompt`, on a sequence of its own that is closed afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`TokenStream::new`], [`InferenceSession::open`] and [`InferenceSession::step`].
    fn generate_greedy(&mut self, prompt: &[TokenId], options: &GenerateOptions) -> Result<Generation>;

    /// As [`generate_greedy`](Self::generate_greedy), and hands each token to `on_token` as it comes; the generation ends as
    /// [`FinishReason::Cancelled`] where that breaks.
    ///
    /// # Errors
    ///
    /// Those of [`generate_greedy`](Self::generate_greedy).
    fn generate_streaming_greedy(
        &mut self,
        prompt: &[TokenId],
        options: &GenerateOptions,
        on_token: &mut dyn FnMut(&SampledToken) -> std::ops::ControlFlow<()>,
    ) -> Result<Generation>;
}

impl<S: InferenceSession + ?Sized> GenerateExt for S {
    fn generate_greedy(&mut self, prompt: &[TokenId], options: &GenerateOptions) -> Result<Generation> {
        self.generate_streaming_greedy(prompt, options, &mut |_| std::ops::ControlFlow::Continue(()))
    }

    fn generate_streaming_greedy(
        &mut self,
        prompt: &[TokenId],
        options: &GenerateOptions,
        on_token: &mut dyn FnMut(&SampledToken) -> std::ops::ControlFlow<()>,
    ) -> Result<Generation> {
        let session = self;
        let sequence = session.open()?;
        let result = run_greedy(session, sequence, prompt, options, on_token);
        // The sequence was opened here, so closing can only fail where the engine is broken; what went wrong first is told.
        let closed = session.close(sequence);
        let generation = result?;
        closed?;
        Ok(generation)
    }
}

fn run_greedy<S: InferenceSession + ?Sized>(
    session: &mut S,
    sequence: SequenceId,
    prompt: &[TokenId],
    options: &GenerateOptions,
    on_token: &mut dyn FnMut(&SampledToken) -> std::ops::ControlFlow<()>,
) -> Result<Generation> {
    let choice = TokenChoice::Engine(SamplingPlan::greedy());
    let mut stream = TokenStream::new(session, sequence, prompt, options.clone(), choice)?;
    let mut generation =
        Generation { tokens: Vec::new(), logprobs: Vec::new(), finish_reason: FinishReason::Cancelled };
    for token in &mut stream {
        let token = token?;
        generation.tokens.push(token.token);
        generation.logprobs.push(token.logprob);
        if on_token(&token).is_break() {
            return Ok(generation);
        }
    }
    generation.finish_reason = stream.finish_reason().unwrap_or(FinishReason::Cancelled);
    Ok(generation)
}
