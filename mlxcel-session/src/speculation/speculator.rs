//! The drafting state of one generation.

use std::time::Duration;

use mlxcel_core::{Capabilities, Result, SamplingParams, SamplingPlace, Stopwatch, TokenId};

use super::governor::{Governor, Record};
use super::{DraftContext, Drafter, Speculation};
use crate::sync::unpoisoned;

/// Draft tokens for one generation.
pub(crate) struct Speculator {
    speculation: Speculation,
    drafters: Vec<(Box<dyn Drafter>, Record)>,
    governor: Governor,
    vocabulary_size: usize,
    /// The most tokens of the text and its draft tokens.
    context: usize,
    /// Whether the model returns hidden states.
    output_states: bool,
    /// Which of the drafters made the draft tokens of the row that runs.
    drafted_by: Option<usize>,
    /// What the row that runs has taken so far.
    taken: Duration,
    /// Whether the row ran in a pass that says nothing about costs.
    disturbed: bool,
}

impl Speculator {
    /// The drafter that `speculation` selects; `None` if a model with `capabilities` cannot verify drafts.
    pub(crate) fn new(
        speculation: &Speculation,
        capabilities: &Capabilities,
        vocabulary_size: usize,
        (sampling, place): (&SamplingParams, SamplingPlace),
    ) -> Result<Option<Self>> {
        let host = place == SamplingPlace::Host;
        if !capabilities.verification || host && !capabilities.logits {
            tracing::debug!(
                "the engine does not support verification for this model: speculative decoding is off"
            );
            return Ok(None);
        }
        let output_states = capabilities.output_states;
        let context = DraftContext { vocabulary_size, sampling, output_states };
        let drafters =
            speculation.sources.iter().map(|source| Ok((source.drafter(&context)?, Record::default())));
        let drafters = drafters.collect::<Result<_>>()?;
        let (speculation, governor) = (speculation.clone(), Governor::default());
        Ok(Some(Self {
            speculation,
            drafters,
            governor,
            vocabulary_size,
            context: capabilities.context,
            output_states: output_states.is_some(),
            drafted_by: None,
            taken: Duration::ZERO,
            disturbed: false,
        }))
    }

    /// Drafts at most `most` tokens that may follow `tokens`.
    pub(crate) fn draft(&mut self, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        self.drafted_by = None;
        self.disturbed = false;
        self.taken = Duration::ZERO;
        let start = Stopwatch::start();
        let room = self.context.saturating_sub(tokens.len());
        let drafts = self.draft_by_any(tokens, most.min(self.speculation.most).min(room));
        self.taken = start.elapsed();
        drafts
    }

    fn draft_by_any(&mut self, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        let mut index = 0;
        while let Some((drafter, record)) = self.drafters.get_mut(index) {
            let width = match self.speculation.width {
                Some(width) => width.min(most),
                None => {
                    let costs = unpoisoned(self.speculation.costs.lock());
                    self.governor.width(&costs, record, most)
                }
            };
            let drafts = if width > 0 { drafter.draft(tokens, width) } else { Ok(Vec::new()) };
            match drafts {
                Ok(mut drafts) => {
                    let unknown = drafts.iter().position(|&token| token as usize >= self.vocabulary_size);
                    drafts.truncate(width.min(unknown.unwrap_or(width)));
                    if !drafts.is_empty() {
                        self.drafted_by = Some(index);
                        return drafts;
                    }
                    index += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, "a draft source is disabled");
                    drop(self.drafters.remove(index));
                }
            }
        }
        Vec::new()
    }

    /// Whether a source reads the model's hidden states, and the model returns them.
    pub(crate) fn reads_states(&self) -> bool {
        self.output_states && self.drafters.iter().any(|(drafter, _)| drafter.reads_states())
    }

    /// Hands the hidden states of the tokens from position `first` on to the sources that read them.
    pub(crate) fn add_states(&mut self, first: usize, states: &[f32]) {
        let readers = self.drafters.iter_mut().filter(|(drafter, _)| drafter.reads_states());
        readers.for_each(|(drafter, _)| drafter.add_states(first, states));
    }

    /// Adds what the row that runs has taken.
    pub(crate) fn spend(&mut self, time: Duration) {
        self.taken += time;
    }

    /// Says that the row runs among others whose time says nothing about it, such as a prompt's.
    pub(crate) fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// Records that the first `accepted` of `drafted` draft tokens were accepted.
    pub(crate) fn observe(&mut self, drafted: usize, accepted: usize) {
        let by = self.drafted_by.take().filter(|_| drafted > 0);
        if let Some((_, record)) = by.and_then(|index| self.drafters.get_mut(index)) {
            record.add(drafted, accepted);
        }
        if !self.disturbed {
            let mut costs = unpoisoned(self.speculation.costs.lock());
            self.governor.observe(&mut costs, self.taken.as_secs_f64(), drafted, accepted);
        }
        self.taken = Duration::ZERO;
    }

    /// Passes a complete text to the sources.
    pub(crate) fn learn(&self, tokens: &[TokenId]) {
        self.speculation.sources.iter().for_each(|source| source.learn(tokens));
    }
}

impl std::fmt::Debug for Speculator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculator").field("speculation", &self.speculation).finish_non_exhaustive()
    }
}
