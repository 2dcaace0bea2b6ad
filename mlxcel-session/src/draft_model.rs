//! Drafting by a smaller model.

use mlxcel_core::{
    Control, Error, ErrorKind, GenerateOptions, Generation, InferenceSession, InferenceSessionExt, Result,
    Row, SamplingParams, SamplingPlan, SequenceId, SessionOptions, TokenId,
};

use crate::model::Model;
use crate::prefix::common;
use crate::sampling::HostSampler;
use crate::speculation::{DraftContext, DraftSource, Drafter};

/// Drafts tokens with a smaller model of the same vocabulary, on any engine. It samples with the same
/// parameters and seed as the generation, so that both draw the same token when their distributions agree.
///
/// Each generation opens a session of the draft model and keeps its KV cache, rewinding it past rejected
/// tokens. A draft model without [`Capabilities::rewind`](crate::Capabilities::rewind), such as one with
/// recurrent layers, drafts on forks of the text instead, so its engine has to claim
/// [`fork`](crate::Capabilities::fork) and two sequences.
#[derive(Clone, Debug)]
pub struct DraftModel(Model);

impl DraftModel {
    /// Drafts with `model`.
    pub fn new(model: Model) -> Self {
        Self(model)
    }
}

impl DraftSource for DraftModel {
    fn drafter(&self, context: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        let (info, capabilities) = (self.0.info(), self.0.capabilities());
        if info.vocabulary_size != context.vocabulary_size {
            let message = "the vocabulary of the draft model differs from the model's";
            return Err(Error::new(ErrorKind::InvalidInput, "speculate", message)
                .with_context("draft_vocabulary", info.vocabulary_size)
                .with_context("vocabulary", context.vocabulary_size));
        }
        let forks = capabilities.fork && capabilities.sequences > 1;
        if !(capabilities.rewind || forks) {
            let message = "drafting needs a draft model that can be rewound, or one that can be forked and has two sequences";
            return Err(Error::unsupported("speculate", message).with_context("capability", "rewind"));
        }
        let plan = SamplingPlan::negotiate(context.sampling, capabilities)
            .or_else(|_| SamplingPlan::negotiate(&SamplingParams::greedy(), capabilities))?;
        let mut session = self.0.engine().open_session(&SessionOptions::default())?;
        let sequence = session.open()?;
        Ok(Box::new(Small { session, sequence, plan, held: Vec::new() }))
    }
}

struct Small {
    session: Box<dyn InferenceSession>,
    sequence: SequenceId,
    plan: SamplingPlan,
    /// What the sequence holds.
    held: Vec<TokenId>,
}

impl Drafter for Small {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        let capacity = self.session.capabilities().context;
        if tokens.len() >= capacity || tokens.is_empty() || most == 0 {
            return Ok(Vec::new());
        }
        let choice = HostSampler::choice(self.plan.clone(), &[])?;
        let mut generation = Generation::new(tokens, capacity, GenerateOptions::new(most), choice)?;
        if !self.session.capabilities().rewind {
            return self.draft_on_a_fork(generation);
        }
        let common = common(&self.held, tokens).min(tokens.len() - 1);
        if common < self.held.len() {
            self.session.rewind(self.sequence, common)?;
            self.held.truncate(common);
        }
        generation.set_computed(common);
        let mut drafts = Vec::with_capacity(most);
        while let Some(token) = generation.advance(&mut self.session, self.sequence)? {
            drafts.push(token.token);
            self.held.clear();
            self.held.extend_from_slice(&generation.tokens()[..generation.computed()]);
        }
        Ok(drafts)
    }
}

impl Small {
    /// Drafts on a fork of the sequence, which holds the text itself and no draft token.
    fn draft_on_a_fork(&mut self, mut generation: Generation) -> Result<Vec<TokenId>> {
        let known = generation.tokens().len() - 1;
        if !generation.tokens()[..known].starts_with(&self.held) {
            self.held.clear();
            self.session.close(self.sequence)?;
            self.sequence = self.session.open()?;
        }
        let new = &generation.tokens()[self.held.len()..known];
        if !new.is_empty() {
            self.session.run_row(Row::extend(self.sequence, new), &Control::default())?;
            self.held.extend_from_slice(new);
        }
        let fork = self.session.fork(self.sequence)?;
        generation.set_computed(known);
        let mut drafts = Vec::new();
        let drafted = loop {
            match generation.advance(&mut self.session, fork) {
                Ok(Some(token)) => drafts.push(token.token),
                Ok(None) => break Ok(drafts),
                Err(error) => break Err(error),
            }
        };
        self.session.close(fork)?;
        drafted
    }
}
