//! A generation as a state machine that the caller drives.

use std::time::{Duration, Instant};

use mlxcel_core::{
    CancelToken, Error, ErrorKind, FinishReason, GenerateOptions, Generation, InferenceSession, Positions,
    Result, Row, RowResult, SampledToken, SamplingNeeds, SamplingPlace, SamplingPlan, SequenceId, Stopwatch,
    TokenChoice, TokenId, TokenLogprob,
};

use crate::constraint::Constrained;
use crate::speculation::Speculator;
use crate::stop::StopStrings;
use crate::{Detokenizer, HostSampler, Model, Options, ReasoningSplitter, Usage};

/// A generation as a state machine: decides which row to compute next, and turns the results into text.
///
/// It adds text to [`mlxcel_core::Generation`]: sampling, stop strings, incremental detokenization, log probabilities
/// and [`Usage`]. Create one with [`Model::generation`](crate::Model::generation). It computes nothing by itself: a
/// [`TextStream`](crate::TextStream) drives one on its own session, an [`Engine`](crate::Engine) drives many in one
/// session, and an application with its own sessions feeds [`row`](Self::row) to a step and passes the result to
/// [`accept`](Self::accept).
#[derive(Debug)]
pub struct TextGeneration {
    generation: Generation,
    cancel: CancelToken,
    /// None for a model without tokenizer: there are tokens and no text.
    detokenizer: Option<Detokenizer>,
    /// Tokens that have no text.
    silent: Vec<TokenId>,
    stops: StopStrings,
    /// Text that is whole and not taken yet.
    text: String,
    logprobs: Vec<f32>,
    top_logprobs: Vec<Vec<TokenLogprob>>,
    usage: Usage,
    constraint: Option<Constrained>,
    /// Whether the engine chooses.
    on_device: bool,
    speculator: Option<Speculator>,
    /// Whether the text has its end.
    flushed: bool,
}

impl TextGeneration {
    pub(crate) fn new(
        model: &Model,
        prompt: &[TokenId],
        options: &Options,
        detokenizer: Option<Detokenizer>,
    ) -> Result<Self> {
        let (info, capabilities) = (model.info(), model.capabilities());
        let vocabulary = info.vocabulary_size;
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::new(ErrorKind::InvalidInput, "generate", "a token is outside the vocabulary")
                .with_context("token", token)
                .with_context("vocabulary", vocabulary));
        }
        let cancel = options.cancel.clone().unwrap_or_default();
        if cancel.is_cancelled() {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "generate",
                "the cancel token of the options is already cancelled; use a new one for each generation",
            ));
        }
        if options.constraint.is_some() && options.ignore_stop {
            let reason = "ignore_stop cannot be combined with a grammar, which decides where the text ends";
            return Err(
                Error::new(ErrorKind::InvalidInput, "generate", reason).with_context("field", "ignore_stop")
            );
        }
        let constraint = options.constraint.as_ref().map(|source| Constrained::new(source.start(model)?));
        let constraint = constraint.transpose()?;
        let needs = SamplingNeeds::default()
            .with_top(options.top_logprobs)
            .with_steps(!options.steps.is_empty())
            .with_mask(constraint.is_some());
        let plan = SamplingPlan::negotiate_for(&options.sampling, needs, capabilities)?;
        tracing::debug!(backend = %info.backend, sampling = %plan, prompt_tokens = prompt.len(), "generate");
        let on_device = plan.place() == SamplingPlace::Device;
        let chosen = (plan.params(), plan.place());
        let speculator = options
            .speculation
            .as_ref()
            .map(|speculation| Speculator::new(speculation, capabilities, vocabulary, chosen))
            .transpose()?
            .flatten();
        let choice = match plan.place() {
            SamplingPlace::Host => {
                let sampler = HostSampler::new(plan.params().clone())?;
                let steps = options.steps.iter().cloned();
                let sampler = steps.fold(sampler, HostSampler::with_step);
                TokenChoice::Host(match &constraint {
                    Some(constraint) => constraint.sampler(sampler),
                    None => Box::new(sampler),
                })
            }
            _ => TokenChoice::Engine(plan),
        };
        let model_stops = model.stop_tokens();
        let mut stop_tokens = options.stop_tokens.clone();
        if !options.ignore_stop {
            stop_tokens.extend_from_slice(&model_stops);
        }
        let mut generate = GenerateOptions::new(options.max_tokens)
            .with_stop_tokens(stop_tokens)
            .with_cancel(cancel.clone())
            .with_top(options.top_logprobs);
        // A limit beyond what the clock can tell is none.
        generate.deadline = match options.time_limit {
            Some(_) if !Stopwatch::HAS_CLOCK => {
                let message = "this platform has no clock; limit the text with max_tokens or a cancel token";
                return Err(Error::unsupported("limit the time of a generation", message));
            }
            limit => limit.and_then(|limit| Instant::now().checked_add(limit)),
        };
        let generation = Generation::new(prompt, capabilities.context, generate, choice)?;
        Ok(Self {
            generation,
            cancel,
            detokenizer,
            silent: model_stops,
            stops: StopStrings::new(&options.stop_strings)?,
            text: String::new(),
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            constraint,
            on_device,
            speculator,
            flushed: false,
        })
    }

    /// The next row to compute on `sequence`, of at most `most` tokens. `None` if the generation has ended or tokens
    /// are [ready](Self::next_ready).
    pub fn row(&self, sequence: SequenceId, most: usize) -> Option<Row<'_>> {
        if self.stops.matched().is_some() || self.is_forced() {
            return None;
        }
        let mut row = self.generation.row(sequence, most)?;
        if let (Positions::Last, Some(constraint)) = (row.want.positions, &self.constraint) {
            // Where there is none, the token that comes is refused with the reason.
            let mask = constraint.mask().as_ref().map(std::slice::from_ref);
            row.want = row.want.with_masks(mask.unwrap_or_default());
        }
        Some(row)
    }

    /// Drafts at most `most` tokens for the next row by [`Options::speculation`](crate::Options::speculation) and
    /// returns how many; the row may be that many tokens longer. Call it before each row to decode speculatively, on a
    /// session that claims verification and rewind.
    pub fn draft(&mut self, most: usize) -> usize {
        let Some(speculator) = &mut self.speculator else { return 0 };
        let generation = &mut self.generation;
        if let (Some(_), false) = (&self.constraint, self.on_device) {
            // Those of the last draft tokens; the sampler asks for the next one itself.
            generation.set_masks(Vec::new());
        }
        // A prompt's last row would be cut where it is not without draft tokens.
        if generation.generated().is_empty() || generation.pending().len() != 1 || generation.has_ready() {
            return 0;
        }
        let mut drafts = speculator.draft(generation.tokens(), most);
        if let Some(constraint) = self.constraint.as_ref().filter(|_| !drafts.is_empty()) {
            if constraint.is_forced() {
                return 0;
            }
            // Who needs the mask meets the error again.
            let Ok(masks) = constraint.masks_ahead(&drafts) else { return 0 };
            drafts.truncate(masks.len().saturating_sub(1));
            generation.set_masks(masks);
        }
        generation.set_drafts(&drafts)
    }

    /// Records that its row shares a pass whose time says nothing about drafting, such as one with a prompt.
    pub(crate) fn disturb(&mut self) {
        if let Some(speculator) = &mut self.speculator {
            speculator.disturb();
        }
    }

    /// Accepts the result of a row of `fed` tokens and returns the generated token, if it is part of the text.
    /// [`take_text`](Self::take_text) then returns the text that it completed. After [drafting](Self::draft), more
    /// tokens may be [ready](Self::next_ready), and rejected ones must be [rewound](Self::rewind).
    ///
    /// # Errors
    ///
    /// The errors of [`mlxcel_core::Generation::accept`], of [`Tokenizer::decode`](crate::Tokenizer::decode), and of the
    /// [`Constraint`](crate::Constraint) in the options.
    pub fn accept(&mut self, fed: usize, result: RowResult) -> Result<Option<SampledToken>> {
        let token = self.generation.accept(fed, result)?;
        self.count_drafts();
        self.take_chosen(token)
    }

    /// The next token that is known without computing a row: a verified draft token, or one that a grammar forces (log
    /// probability 0, as the only choice). After [`accept`](Self::accept), call it until it returns `None`, before the
    /// next row.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`](crate::Tokenizer::decode).
    pub fn next_ready(&mut self) -> Result<Option<SampledToken>> {
        if self.stops.matched().is_some() {
            return Ok(None);
        }
        if self.generation.has_ready() {
            let token = self.generation.next_ready();
            return self.take_chosen(token);
        }
        let Some(token) = self.constraint.as_mut().and_then(Constrained::next_forced) else {
            return Ok(None);
        };
        let token = self.generation.push(token).then(|| SampledToken::new(token, 0.0));
        self.end_where_complete();
        self.take_in(token)
    }

    /// Rewinds `sequence` past rejected draft tokens, as [`mlxcel_core::Generation::rewind`].
    ///
    /// # Errors
    ///
    /// The same errors.
    pub fn rewind<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
    ) -> Result<()> {
        self.generation.rewind(session, sequence)
    }

    /// Runs steps of `session` until `sequence` yields the next token; `None` at the end.
    ///
    /// # Errors
    ///
    /// The errors of [`mlxcel_core::Generation::advance`] and of [`accept`](Self::accept).
    pub fn advance<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
    ) -> Result<Option<SampledToken>> {
        if let Some(token) = self.next_ready()? {
            return Ok(Some(token));
        }
        if self.finish_reason().is_some() {
            self.rewind(session, sequence)?;
            self.flush()?;
            return Ok(None);
        }
        if let (true, Some(constraint)) = (self.on_device, &self.constraint) {
            self.generation.set_mask(Some(constraint.mask().as_ref().map_err(Clone::clone)?.clone()));
        }
        self.draft(usize::MAX);
        let token = self.timed(session, |generation, session| generation.advance(session, sequence))?;
        self.count_drafts();
        let token = self.take_chosen(token)?;
        if self.finish_reason().is_some() {
            self.rewind(session, sequence)?;
        }
        Ok(token)
    }

    /// As [`mlxcel_core::Generation::advance_to`].
    ///
    /// # Errors
    ///
    /// The same errors.
    pub fn advance_to<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<bool> {
        self.timed(session, |generation, session| generation.advance_to(session, sequence, tokens))
    }

    /// Ends the generation if it was cancelled or its time limit has passed. Returns whether it has ended, for any
    /// reason.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`](crate::Tokenizer::decode), for text that was held back.
    pub fn poll_end(&mut self) -> Result<bool> {
        let ended = self.stops.matched().is_some() || self.generation.poll_end();
        if ended {
            self.flush()?;
        }
        Ok(ended)
    }

    /// Sets how many of its tokens the sequence already holds, as [`mlxcel_core::Generation::set_computed`].
    pub fn set_computed(&mut self, tokens: usize) {
        self.generation.set_computed(tokens);
        if self.usage.generated_tokens == 0 {
            self.usage.reused_tokens = self.generation.computed();
        }
    }

    /// Adds the duration of a step with one of its rows, of which `compile` was spent compiling, to its
    /// [`usage`](Self::usage). Call it before accepting the step's result.
    pub fn spend(&mut self, step: Duration, compile: Duration) {
        self.usage.spend(step, compile);
        if let Some(speculator) = &mut self.speculator {
            speculator.spend(step.saturating_sub(compile));
            if !compile.is_zero() {
                // A program's first run is longer than its compilation, and says nothing about the next.
                speculator.disturb();
            }
        }
    }

    /// Sets how long the generation was queued before its first row.
    pub fn set_queued(&mut self, queued: Duration) {
        self.usage.queued = queued;
    }

    /// The underlying token generation: the tokens, and how many are not computed yet.
    pub fn tokens(&self) -> &Generation {
        &self.generation
    }

    /// The tokens generated so far, without the stop token but including the tokens of a stop string.
    pub fn generated(&self) -> &[TokenId] {
        self.generation.generated()
    }

    /// Takes the complete characters that were not taken yet; may be empty.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Whether [`take_text`](Self::take_text) has text.
    pub fn has_text(&self) -> bool {
        !self.text.is_empty()
    }

    /// The natural log probability of each token generated so far, by the model's own distribution.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The most likely tokens at each place of the text, as many as [`Options::top_logprobs`] asks for.
    pub fn top_logprobs(&self) -> &[Vec<TokenLogprob>] {
        &self.top_logprobs
    }

    /// Tokens and time spent so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Why it ended; `None` while it is running.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        match self.stops.matched() {
            Some(_) => Some(FinishReason::StopString),
            None => self.generation.finish_reason(),
        }
    }

    /// The stop string that ended it, if any.
    pub fn stop_string(&self) -> Option<&str> {
        self.stops.matched()
    }

    /// A splitter of its text into reasoning and answer, starting at the beginning of the text. All text is the answer
    /// if the model does not mark reasoning.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`](crate::Tokenizer::decode).
    pub fn splitter(&self) -> Result<ReasoningSplitter> {
        let tokenizer = self.detokenizer.as_ref().map(Detokenizer::tokenizer);
        let format = tokenizer.and_then(|tokenizer| Some((tokenizer, tokenizer.reasoning()?)));
        let Some((tokenizer, format)) = format else { return Ok(ReasoningSplitter::plain()) };
        let prompt = &self.generation.tokens()[..self.generation.prompt_length()];
        format.splitter_after(tokenizer, prompt)
    }

    /// Cancels the generation from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Runs steps of `session` and adds their time to the usage.
    fn timed<S: InferenceSession + ?Sized, T>(
        &mut self,
        session: &mut S,
        run: impl FnOnce(&mut Generation, &mut S) -> Result<T>,
    ) -> Result<T> {
        let compiled = session.stats().compile_time;
        let computed = self.generation.computed();
        let span = match self.generation.generated() {
            [] => tracing::debug_span!("prefill", computed, tokens = self.generation.pending().len()),
            _ => tracing::trace_span!("step", computed),
        };
        let _entered = span.enter();
        let start = Stopwatch::start();
        let result = run(&mut self.generation, session);
        let compile = session.stats().compile_time.saturating_sub(compiled);
        self.spend(start.elapsed(), compile);
        result
    }

    /// Processes a chosen token.
    fn take_chosen(&mut self, token: Option<SampledToken>) -> Result<Option<SampledToken>> {
        if let (Some(token), Some(constraint)) = (&token, &mut self.constraint) {
            constraint.mask().as_ref().map_err(Clone::clone)?;
            constraint.accept(token.token)?;
            self.end_where_complete();
        }
        self.take_in(token)
    }

    fn is_forced(&self) -> bool {
        self.generation.finish_reason().is_none()
            && self.constraint.as_ref().is_some_and(Constrained::is_forced)
    }

    fn end_where_complete(&mut self) {
        if self.constraint.as_ref().is_some_and(Constrained::is_complete) {
            self.generation.complete();
        }
    }

    /// Records the acceptance of the draft tokens of a row.
    fn count_drafts(&mut self) {
        let (drafted, accepted) = (self.generation.drafted(), self.generation.accepted());
        let new = (drafted - self.usage.drafted_tokens, accepted - self.usage.accepted_tokens);
        (self.usage.drafted_tokens, self.usage.accepted_tokens) = (drafted, accepted);
        // The first token's row is that of a prompt.
        if let Some(speculator) = self.speculator.as_mut().filter(|_| self.usage.generated_tokens > 0) {
            speculator.observe(new.0, new.1);
        }
    }

    fn take_in(&mut self, token: Option<SampledToken>) -> Result<Option<SampledToken>> {
        if let Some(token) = &token {
            self.usage.count_token();
            self.logprobs.push(token.logprob);
            self.top_logprobs.push(token.top.clone());
            let silent = self.silent.contains(&token.token);
            let piece = match &mut self.detokenizer {
                Some(detokenizer) if !silent => detokenizer.push(token.token)?,
                _ => None,
            };
            self.say(piece);
        }
        if let Some(reason) = self.finish_reason() {
            self.generation.end(reason);
            self.flush()?;
        }
        Ok(token)
    }

    /// Returns the withheld text, at the end of the text.
    fn flush(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.flushed, true) {
            let piece = match &mut self.detokenizer {
                Some(detokenizer) => detokenizer.finish()?,
                None => None,
            };
            self.say(piece);
            self.text.push_str(&self.stops.finish());
            if let Some(speculator) = &self.speculator {
                speculator.learn(self.generation.tokens());
            }
        }
        Ok(())
    }

    fn say(&mut self, piece: Option<String>) {
        if let Some(piece) = piece {
            self.text.push_str(&self.stops.push(&piece));
        }
    }
}
