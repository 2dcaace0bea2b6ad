//! Texts that are embedded or scored beside the requests, in the same session and steps.

use mlxcel_core::{CancelToken, Capabilities, Error, ErrorKind, Result, Row, RowResult, SequenceId, TokenId};

use super::Engine;
use super::channel::thread_is_gone;
use super::guard::EngineId;
use super::scheduler::Scheduler;
use crate::embed::{EmbedOptions, EncodedTexts};
use crate::rerank::RerankOptions;
use crate::score::{self, ScoreOptions, TextScore};
use crate::sync::mpsc::{Receiver, SyncSender, sync_channel};
use crate::texts::{TextRow, complete, in_order, only};

/// Texts of one call.
pub(super) struct Job {
    texts: Vec<TextRow>,
    /// Those that have not begun, the next one last.
    waiting: Vec<usize>,
    begun: Vec<Begun>,
    results: Vec<Option<RowResult>>,
    error: Option<Error>,
    cancel: Option<CancelToken>,
    reply: SyncSender<Result<Vec<RowResult>>>,
}

/// A text that has a sequence.
struct Begun {
    text: usize,
    sequence: SequenceId,
    /// Whether the tokens that are fed first were fed.
    is_fed: bool,
}

impl Job {
    fn new(
        texts: Vec<TextRow>,
        capabilities: &Capabilities,
        cancel: Option<CancelToken>,
    ) -> (Self, Receiver<Result<Vec<RowResult>>>) {
        let (reply, results) = sync_channel(1);
        let mut waiting = in_order(&texts, capabilities);
        waiting.reverse();
        let none = texts.iter().map(|_| None).collect();
        (Self { texts, waiting, begun: Vec::new(), results: none, error: None, cancel, reply }, results)
    }

    /// Whether nothing is left to compute.
    fn is_over(&self) -> bool {
        self.begun.is_empty() && (self.error.is_some() || self.waiting.is_empty())
    }

    /// Ends what runs with `error`; the first one is told.
    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
        self.waiting.clear();
    }
}

/// A row of a text in a step: of which job, and which of its begun texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPlace {
    job: usize,
    begun: usize,
}

impl Scheduler {
    /// How many sequences hold texts.
    pub(super) fn text_sequences(&self) -> usize {
        self.jobs.iter().map(|job| job.begun.len()).sum()
    }

    /// How many tokens the sequences of texts hold between steps: those that are fed before a text.
    pub(super) fn text_tokens(&self) -> usize {
        let fed =
            |job: &Job, begun: &Begun| if begun.is_fed { job.texts[begun.text].before.len() } else { 0 };
        self.jobs.iter().flat_map(|job| job.begun.iter().map(move |begun| fed(job, begun))).sum()
    }

    /// Gives free sequences to texts: all of them, but only one while requests wait, and none while one
    /// [needs their memory](Self::relieve).
    pub(super) fn admit_texts(&mut self) {
        for job in &mut self.jobs {
            if job.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                job.fail(Error::new(ErrorKind::Cancelled, "compute texts", "the call was cancelled"));
            }
        }
        self.close_texts();
        let held = self.text_sequences();
        if self.texts_pause {
            self.texts_pause = held > 0;
            return;
        }
        let free = self.limits.sequences.saturating_sub(self.running.len() + held);
        let mut most = if self.waiting.is_empty() { free } else { free.min(1_usize.saturating_sub(held)) };
        for job in &mut self.jobs {
            while most > 0
                && let Some(text) = job.waiting.pop()
            {
                match self.session.open() {
                    Ok(sequence) => {
                        let is_fed = job.texts[text].before.is_empty();
                        job.begun.push(Begun { text, sequence, is_fed });
                        most -= 1;
                    }
                    Err(error) => job.fail(error),
                }
            }
        }
    }

    /// The rows of texts for a step with `left` tokens to spare: at least one, if there is a text, and each
    /// whole.
    pub(super) fn text_rows(jobs: &[Job], mut left: usize) -> Vec<(TextPlace, Row<'_>)> {
        let mut rows = Vec::new();
        for (number, job) in jobs.iter().enumerate() {
            for (begun, Begun { text, sequence, is_fed }) in job.begun.iter().enumerate() {
                let text = &job.texts[*text];
                let mut row = if *is_fed { text.row(*sequence) } else { text.first(*sequence) };
                row.cancel = job.cancel.as_ref();
                if rows.is_empty() || row.tokens.len() <= left {
                    left = left.saturating_sub(row.tokens.len());
                    rows.push((TextPlace { job: number, begun }, row));
                }
            }
        }
        rows
    }

    /// Takes the results of a step's rows of texts, and replies to the calls that have all of theirs.
    pub(super) fn accept_texts(&mut self, results: Vec<(TextPlace, Result<RowResult>)>) {
        // From the last to the first, so that places stay what they are.
        for (TextPlace { job, begun }, result) in results.into_iter().rev() {
            let job = &mut self.jobs[job];
            match result {
                Ok(_) if !job.begun[begun].is_fed => job.begun[begun].is_fed = true,
                result => {
                    let Begun { text, sequence, .. } = job.begun.remove(begun);
                    match result {
                        Ok(result) => job.results[text] = Some(result),
                        Err(error) => job.fail(error),
                    }
                    self.close(sequence);
                }
            }
        }
        self.close_texts();
    }

    /// Closes the sequences of calls that failed, and replies to those that are over.
    fn close_texts(&mut self) {
        let failed = self.jobs.iter_mut().filter(|job| job.error.is_some());
        let left: Vec<Begun> = failed.flat_map(|job| job.begun.drain(..)).collect();
        left.into_iter().for_each(|begun| self.close(begun.sequence));
        while let Some(over) = self.jobs.iter().position(Job::is_over) {
            let job = self.jobs.remove(over);
            let results = job.error.map_or_else(|| complete(job.results), Err);
            // The caller waits for it, unless it panicked.
            let _ = job.reply.send(results);
        }
    }

    /// Ends all calls as cancelled.
    pub(super) fn cancel_texts(&mut self) {
        for job in &mut self.jobs {
            job.fail(Error::new(ErrorKind::Cancelled, "compute texts", "the engine was shut down"));
        }
        self.close_texts();
    }
}

impl Engine {
    /// The embedding of a text, as [`Model::embed`](crate::Model::embed), computed in the engine's session.
    ///
    /// # Errors
    ///
    /// The errors of [`embed_all`](Self::embed_all).
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        only(self.embed_all(&[text], options)?)
    }

    /// The embeddings of several texts, in order, as [`Model::embed_all`](crate::Model::embed_all), computed
    /// in the engine's session beside its requests: texts take the sequences that requests leave free, or
    /// one if requests wait, and share steps with them. Each text is computed in one step, so a long one
    /// delays the next token of all requests. Waits for the results; in async tasks, call it on a thread
    /// for blocking work.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::embed_all`](crate::Model::embed_all), [`ErrorKind::Cancelled`] after
    /// [`shutdown`](Self::shutdown), [`ErrorKind::Internal`] if the engine's thread panicked, and
    /// [`ErrorKind::InvalidInput`] in code of a request, for which the engine waits.
    pub fn embed_all(&self, texts: &[impl AsRef<str>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        self.embed_encoded(&self.model().encode_to_embed(texts, options)?, options)
    }

    /// As [`embed_all`](Self::embed_all), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// The errors of [`embed_all`](Self::embed_all).
    pub fn embed_tokens(&self, texts: &[Vec<TokenId>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        self.embed_encoded(&EncodedTexts { texts: texts.to_vec(), prompt_tokens: 0 }, options)
    }

    fn embed_encoded(&self, texts: &EncodedTexts, options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        let rows = self.model().rows_to_embed(texts, options)?;
        let results = self.compute(rows, options.cancel.clone())?;
        self.model().vectors(texts, results, options)
    }

    /// How well each document answers the query, as [`Model::rerank`](crate::Model::rerank), scheduled as by
    /// [`embed_all`](Self::embed_all).
    ///
    /// # Errors
    ///
    /// The errors of [`Model::rerank`](crate::Model::rerank) and of [`embed_all`](Self::embed_all).
    pub fn rerank(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
    ) -> Result<Vec<f32>> {
        let rows = self.model().rows_to_rerank(query, documents, options)?;
        let results = self.compute(rows.clone(), options.cancel.clone())?;
        self.model().rerank_scores(&rows, results, options)
    }

    /// The log probability of each token of `text`, as [`Model::score`](crate::Model::score), computed in the
    /// engine's session. Needs [`Capabilities::every_position`](crate::Capabilities::every_position).
    ///
    /// # Errors
    ///
    /// The errors of [`score_all`](Self::score_all).
    pub fn score(&self, text: &str, options: &ScoreOptions) -> Result<TextScore> {
        only(self.score_all(&[text], options)?)
    }

    /// As [`score`](Self::score) for several texts, in order, scheduled as by [`embed_all`](Self::embed_all).
    ///
    /// # Errors
    ///
    /// The errors of [`Model::score`](crate::Model::score) and of [`embed_all`](Self::embed_all).
    pub fn score_all(&self, texts: &[impl AsRef<str>], options: &ScoreOptions) -> Result<Vec<TextScore>> {
        self.score_all_tokens(&self.model().encode_to_score(texts, options)?, options)
    }

    /// As [`score_all`](Self::score_all), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// The errors of [`score_all`](Self::score_all).
    pub fn score_all_tokens(&self, texts: &[Vec<TokenId>], options: &ScoreOptions) -> Result<Vec<TextScore>> {
        let claimed = self.model().capabilities().every_position;
        Capabilities::require(claimed, "score text", "every_position")?;
        let rows = self.model().rows_to_score(texts, options)?;
        let results = self.compute(rows.clone(), options.cancel.clone())?;
        score::scores(texts, &rows, results)
    }

    /// The results of `texts`, computed by the engine's thread.
    fn compute(&self, texts: Vec<TextRow>, cancel: Option<CancelToken>) -> Result<Vec<RowResult>> {
        let queue = &self.life.queue;
        if EngineId::of(&queue.bell).is_waiting_for_us() {
            let message = "code of a request waits for the engine that runs it; call it on another thread";
            return Err(Error::new(ErrorKind::InvalidInput, "compute texts", message));
        }
        let (job, results) = Job::new(texts, self.model().capabilities(), cancel);
        queue.push_job(job)?;
        results.recv().map_err(|_| thread_is_gone())?
    }
}
