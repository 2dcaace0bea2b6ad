//! Guesses by a smaller model.

use mlxcel_core::{
    Error, ErrorKind, GenerateOptions, Generation, InferenceSession, Result, SamplingParams, SamplingPlace,
    SamplingPlan, SequenceId, SessionOptions, TokenChoice, TokenId,
};

use super::{DraftContext, DraftSource, Drafter};
use crate::{HostSampler, Model};

/// Guesses what a smaller model of the same vocabulary says, on any engine. It chooses as the generation does, with the same seed, so that
/// both draw the same where they think alike.
///
/// Each generation has a session of the model; what it has computed stays, and is rewound where a guess was wrong, so its engine has to
/// claim [`Capabilities::rewind`](crate::Capabilities::rewind).
#[derive(Clone, Debug)]
pub struct DraftModel(Model);

impl DraftModel {
    /// Guesses by `model`.
    pub fn new(model: Model) -> Self {
        Self(model)
    }
}

impl DraftSource for DraftModel {
    fn drafter(&self, context: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        let (info, capabilities) = (self.0.info(), self.0.capabilities());
        if info.vocabulary_size != context.vocabulary_size {
            let message = "the draft model has another vocabulary than the model";
            return Err(Error::new(ErrorKind::InvalidInput, "speculate", message)
                .with_context("draft_vocabulary", info.vocabulary_size)
                .with_context("vocabulary", context.vocabulary_size));
        }
        if !capabilities.rewind {
            let message = "the engine of the draft model cannot rewind it, so it cannot guess";
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
