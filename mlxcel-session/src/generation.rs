//! A generation as a state machine that the caller drives.

mod begin;
mod progress;

use std::time::{Duration, Instant};

use mlxcel_core::{
    CancelToken, Control, Error, ErrorKind, FinishReason, GenerateOptions, Generation, InferenceSession,
    Result, Row, RowResult, SampledToken, SamplingNeeds, SamplingPlace, SamplingPlan, SequenceId,
    SequenceOptions, StepOutput, Stopwatch, TokenId,
};

use crate::constraint::Constrained;
use crate::detokenize::Detokenizer;
use crate::model::Model;
use crate::options::Options;
use crate::sampling::HostSampler;
use crate::speculation::Speculator;
use crate::stop::StopStrings;
use crate::usage::Usage;

/// The most tokens of a row whose hidden states are wanted: all of a row are returned at once.
const MOST_WITH_STATES: usize = 2048;

/// A generation as a state machine: decides which row to compute next, and turns the results into text.
///
/// It adds text to [`mlxcel_core::Generation`]: sampling, stop strings, incremental detokenization, log
/// probabilities and [`Usage`]. Create one with [`Model::generation`](crate::Model::generation). It computes
/// nothing by itself: a [`TextStream`](crate::TextStream) drives one on its own session, an
/// [`Engine`](crate::Engine) drives many in one session, and an application with its own sessions feeds
/// [`row`](Self::row) to a step and passes the result to [`accept`](Self::accept).
#[derive(Debug)]
pub struct TextGeneration {
    generation: Generation,
    /// What its sequence is opened with.
    sequence: SequenceOptions,
    cancel: CancelToken,
    /// None for a model without tokenizer: there are tokens and no text.
    detokenizer: Option<Detokenizer>,
    /// Tokens that have no text.
    silent: Vec<TokenId>,
    stops: StopStrings,
    /// Text that is whole and not taken yet.
    text: String,
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
        deadline: Option<Instant>,
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
            let message =
                "the cancel token of the options is already cancelled; use a new one for each generation";
            return Err(Error::new(ErrorKind::Cancelled, "generate", message));
        }
        if options.constraint.is_some() && options.ignore_stop {
            let reason = "ignore_stop cannot be combined with a grammar, which decides where the text ends";
            return Err(
                Error::new(ErrorKind::InvalidInput, "generate", reason).with_context("field", "ignore_stop")
            );
        }
        let constraint = options.constraint.as_ref().map(|source| source.start_after(model, prompt));
        let constraint = constraint.transpose()?.map(Constrained::new);
        let needs = SamplingNeeds::default()
            .with_top(options.top_logprobs)
            .with_steps(!options.steps.is_empty())
            .with_mask(constraint.is_some());
        let plan = SamplingPlan::negotiate_for(&options.sampling, needs, capabilities)?;
        tracing::debug!(backend = %info.backend, sampling = %plan, prompt_tokens = prompt.len(), "generate");
        let on_device = plan.place() == SamplingPlace::Device;
        let chosen = (plan.params(), plan.place());
        let speculator = match &options.speculation {
            Some(speculation) => Speculator::new(speculation, capabilities, vocabulary, chosen)?,
            None => None,
        };
        let choice = HostSampler::choice(plan, &options.steps)?;
        let model_stops = model.stop_tokens();
        let mut stop_tokens = options.stop_tokens.clone();
        if !options.ignore_stop {
            stop_tokens.extend_from_slice(&model_stops);
        }
        let mut generate = GenerateOptions::new(options.max_tokens)
            .with_stop_tokens(stop_tokens)
            .with_cancel(cancel.clone())
            .with_top(options.top_logprobs);
        generate.deadline = deadline;
        let generation = Generation::new(prompt, capabilities.context, generate, choice)?;
        let mut sequence = SequenceOptions::default();
        sequence.adapter.clone_from(&options.adapter);
        Ok(Self {
            generation,
            sequence,
            cancel,
            detokenizer,
            silent: model_stops,
            stops: StopStrings::new(&options.stop_strings)?,
            text: String::new(),
            usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
            constraint,
            on_device,
            speculator,
            flushed: false,
        })
    }

    /// The options to open its sequence with: the adapter of [`Options::adapter`].
    pub fn sequence_options(&self) -> &SequenceOptions {
        &self.sequence
    }

    /// The next row to compute on `sequence`, of at most `most` tokens. `None` if the generation has ended or
    /// tokens are [ready](Self::next_ready). If the engine samples, it waits for the mask of the row's
    /// token.
    ///
    /// # Errors
    ///
    /// The errors of [`Constraint::mask`](crate::Constraint::mask).
    pub fn row(&mut self, sequence: SequenceId, most: usize) -> Result<Option<Row<'_>>> {
        if self.stops.matched().is_some() || self.is_forced() {
            return Ok(None);
        }
        let reads_states = self.speculator.as_ref().is_some_and(Speculator::reads_states);
        let most = if reads_states { most.min(MOST_WITH_STATES) } else { most };
        if self.on_device {
            self.set_mask(most)?;
        }
        let mut row = self.generation.row(sequence, most);
        if let Some(row) = row.as_mut().filter(|_| reads_states) {
            row.want.states = true;
        }
        Ok(row)
    }

    /// Hands the hidden states of its row's tokens to the draft source that reads them: those of
    /// [`StepOutput::take_states`], for a row whose want [asks](mlxcel_core::Want::states) for them. Call it
    /// before [`accept`](Self::accept).
    pub fn add_states(&mut self, states: &[f32]) {
        let first = self.generation.computed();
        if let Some(speculator) = &mut self.speculator {
            speculator.add_states(first, states);
        }
    }

    /// Sets the mask of the token after a row of `fed` tokens: none if that is part of a prompt.
    /// [`draft`](Self::draft) sets those of draft tokens.
    fn set_mask(&mut self, fed: usize) -> Result<()> {
        let chooses = fed >= self.generation.pending().len() && !self.generation.has_ready();
        if let Some(constraint) =
            self.constraint.as_ref().filter(|_| chooses && self.generation.drafts() == 0)
        {
            self.generation.set_mask(Some(constraint.mask()?));
        }
        Ok(())
    }

    /// Drafts at most `most` tokens for the next row by [`Options::speculation`](crate::Options::speculation)
    /// and returns how many; the row may be that many tokens longer. Call it before each row to decode
    /// speculatively, on a session that claims verification.
    ///
    /// # Errors
    ///
    /// The errors of [`Constraint::masks_ahead`](crate::Constraint::masks_ahead).
    pub fn draft(&mut self, most: usize) -> Result<usize> {
        let Some(speculator) = &mut self.speculator else { return Ok(0) };
        let generation = &mut self.generation;
        // Draft tokens after a prompt would move the places at which its rows are cut.
        if generation.generated().is_empty() || generation.pending().len() != 1 || generation.has_ready() {
            return Ok(0);
        }
        let mut drafts = speculator.draft(generation.tokens(), most);
        if let Some(constraint) = self.constraint.as_ref().filter(|_| !drafts.is_empty()) {
            if constraint.is_forced() {
                return Ok(0);
            }
            let masks = constraint.masks_ahead(&drafts)?;
            drafts.truncate(masks.len().saturating_sub(1));
            generation.set_masks(masks);
        }
        Ok(generation.set_drafts(&drafts))
    }

    /// Records that its row shares a pass whose time says nothing about drafting, such as one with a prompt.
    pub(crate) fn disturb(&mut self) {
        if let Some(speculator) = &mut self.speculator {
            speculator.disturb();
        }
    }

    /// Accepts the result of a row of `fed` tokens and returns the generated token, if it is part of the
    /// text. [`take_text`](Self::take_text) then returns the text that it completed. After
    /// [drafting](Self::draft), more tokens may be [ready](Self::next_ready), and rejected ones must be
    /// [rewound](Self::rewind).
    ///
    /// # Errors
    ///
    /// The errors of [`mlxcel_core::Generation::accept`], of [`Tokenizer::decode`](crate::Tokenizer::decode),
    /// and of the [`Constraint`](crate::Constraint) in the options.
    pub fn accept(&mut self, fed: usize, result: RowResult) -> Result<Option<SampledToken>> {
        let token = self.choose(fed, result)?;
        self.count_drafts();
        self.take_chosen(token)
    }

    /// Hands the result of a row to the tokens. If the host samples, it waits for the mask here, which was
    /// computed while the engine computed the row.
    fn choose(&mut self, fed: usize, result: RowResult) -> Result<Option<SampledToken>> {
        if !self.on_device
            && let Err(error) = self.set_mask(fed)
        {
            // The sequence holds the row's tokens all the same, and there is nothing to draw.
            let _ = self.generation.accept(fed, RowResult::Extended);
            return Err(error);
        }
        self.generation.accept(fed, result)
    }

    /// The next token that is known without computing a row: a verified draft token, or one that a grammar
    /// forces (log probability 0, as the only choice). After [`accept`](Self::accept), call it until it
    /// returns `None`, before the next row.
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
        // A text that has ended without its last forced tokens is not complete.
        if !self.is_forced() {
            return Ok(None);
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
        loop {
            if let Some(token) = self.next_ready()? {
                return Ok(Some(token));
            }
            if self.poll_end()? {
                self.rewind(session, sequence)?;
                return Ok(None);
            }
            self.draft(usize::MAX)?;
            if let Some(token) = self.run_row(session, sequence, usize::MAX)? {
                return Ok(Some(token));
            }
        }
    }

    /// Computes the prompt until `sequence` holds the first `tokens` tokens. Returns false if the generation
    /// ended before.
    ///
    /// # Errors
    ///
    /// The errors of [`advance`](Self::advance).
    pub fn advance_to<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
        tokens: usize,
    ) -> Result<bool> {
        while self.generation.computed() < tokens.min(self.generation.prompt_length() - 1) {
            if self.poll_end()? {
                return Ok(false);
            }
            self.run_row(session, sequence, tokens - self.generation.computed())?;
        }
        Ok(true)
    }

    /// Ends the generation if it was cancelled or its time limit has passed. Returns whether it has ended,
    /// for any reason.
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

    /// Sets how many tokens its sequence holds after a row of its own failed.
    pub(crate) fn set_position(&mut self, tokens: usize) {
        self.generation.set_computed(tokens);
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

    /// Runs its next row, of at most `most` tokens, and adds the time to the usage. Cancellation is not an
    /// error: it ends the generation.
    fn run_row<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
        most: usize,
    ) -> Result<Option<SampledToken>> {
        self.rewind(session, sequence)?;
        let compiled = session.stats().compile_time;
        let computed = self.generation.computed();
        let span = match self.generation.generated() {
            [] => tracing::debug_span!("prefill", computed, tokens = self.generation.pending().len()),
            _ => tracing::trace_span!("step", computed),
        };
        let entered = span.entered();
        let start = Stopwatch::start();
        let (cancel, deadline) = (self.cancel.clone(), self.generation.options().deadline);
        let mut control = Control::cancelled_by(&cancel);
        control.deadline = deadline;
        let Some(row) = self.row(sequence, most)? else { return Ok(None) };
        let fed = row.tokens.len();
        let mut out = StepOutput::new();
        let answer = session.step(&[row], &control, &mut out).and_then(|()| out.take_only("step"));
        if let Some(states) = out.take_states(0) {
            self.add_states(&states);
        }
        let chosen = answer.and_then(|result| self.choose(fed, result));
        let compile = session.stats().compile_time.saturating_sub(compiled);
        drop(entered);
        self.spend(start.elapsed(), compile);
        match chosen {
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                self.generation.set_computed(session.state(sequence)?.position);
                // Nothing else cancels a step of ours.
                if !self.poll_end()? {
                    self.generation.end(FinishReason::Cancelled);
                }
                Ok(None)
            }
            chosen => {
                self.count_drafts();
                let token = self.take_chosen(chosen?)?;
                self.rewind(session, sequence)?;
                Ok(token)
            }
        }
    }

    /// Processes a chosen token.
    fn take_chosen(&mut self, token: Option<SampledToken>) -> Result<Option<SampledToken>> {
        if let (Some(token), Some(constraint)) = (&token, &mut self.constraint) {
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
