//! Drafting by a smaller model.

use mlxcel_core::{
    Error, ErrorKind, GenerateOptions, Generation, InferenceSession, Result, SamplingParams, SamplingPlace,
    SamplingPlan, SequenceId, SessionOptions, TokenChoice, TokenId,
};

use super::{DraftContext, DraftSource, Drafter};
use crate::model::Model;
use crate::sampling::HostSampler;

/// Drafts tokens with a smaller model of the same vocabulary, on any engine. It samples with the same
/// parameters and seed as the generation, so that both draw the same token when their distributions agree.
///
/// Each generation opens a session of the draft model and keeps its KV cache, rewinding it past rejected
/// tokens, so the draft model's engine has to claim [`Capabilities::rewind`](crate::Capabilities::rewind).
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
        if !capabilities.rewind {
            let message = "the draft model's engine does not support rewind, which drafting needs";
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

impl Small {
    fn choice(&self) -> Result<TokenChoice> {
        Ok(match self.plan.place() {
            SamplingPlace::Host => TokenChoice::Host(Box::new(HostSampler::new(self.plan.params().clone())?)),
            _ => TokenChoice::Engine(self.plan.clone()),
        })
    }
}

impl Drafter for Small {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        let capacity = self.session.capabilities().context;
        if tokens.len() >= capacity || tokens.is_empty() || most == 0 {
            return Ok(Vec::new());
        }
        let common = self.held.iter().zip(tokens).take_while(|(held, token)| held == token).count();
        let common = common.min(tokens.len() - 1);
        if common < self.held.len() {
            self.session.rewind(self.sequence, common)?;
            self.held.truncate(common);
        }
        let mut generation = Generation::new(tokens, capacity, GenerateOptions::new(most), self.choice()?)?;
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
