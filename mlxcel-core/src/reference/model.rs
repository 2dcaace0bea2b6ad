//! The loaded model.

use std::sync::Arc;
use std::time::Duration;

use super::Fault;
use super::language::Language;
use super::session::ReferenceSession;
use crate::{Capabilities, InferenceSession, Model, ModelInfo, Result, SessionOptions};

/// What the sessions of a model share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) language: Language,
    pub(super) info: ModelInfo,
    pub(super) capabilities: Capabilities,
    /// How many tokens of a row one pass computes.
    pub(super) chunk: usize,
    /// How long a pass takes at least.
    pub(super) delay: Duration,
    pub(super) fault: Option<Fault>,
}

pub(super) struct ReferenceModel(Arc<Shared>);

impl ReferenceModel {
    pub(super) fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }
}

impl Model for ReferenceModel {
    fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        let capacity = options.capacity_within(self.0.info.capacity)?;
        Ok(Box::new(ReferenceSession::new(Arc::clone(&self.0), capacity)))
    }
}
