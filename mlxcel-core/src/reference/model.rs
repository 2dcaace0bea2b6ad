//! The loaded model.

use std::sync::Arc;
use std::time::Duration;

use super::adapters::AdapterRoom;
use super::language::{Entry, Language};
use super::session::ReferenceSession;
use crate::adapter::Adapter;
use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::info::ModelInfo;
use crate::load::ModelSource;
use crate::model::{Model, SessionOptions};
use crate::sequence::SequenceOptions;
use crate::session::InferenceSession;

/// What of earlier tokens a position sees, and so what a sequence must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// All of them.
    Full,
    /// As many of the last ones, its own included.
    Window(usize),
    /// All of them, by way of one number.
    Recurrent,
}

impl Memory {
    /// The bytes that a sequence of `tokens` keeps.
    pub(super) fn bytes(self, tokens: usize) -> usize {
        match self {
            Self::Full => tokens * Entry::BYTES,
            Self::Window(window) => tokens.min(window) * Entry::BYTES,
            Self::Recurrent => size_of::<u64>(),
        }
    }

    /// Whether a sequence of up to `capacity` tokens can be had back as it was.
    pub(super) fn is_rewindable(self, capacity: usize) -> bool {
        match self {
            Self::Full => true,
            Self::Window(window) => window >= capacity,
            Self::Recurrent => false,
        }
    }
}

/// What a sequence was fed, which sampling reads, with the state of a recurrence beside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    pub(super) entries: Vec<Entry>,
    pub(super) options: SequenceOptions,
    /// Made of all entries, one after the other.
    state: u64,
}

impl Cache {
    /// That of an empty sequence.
    pub(super) fn with_options(options: &SequenceOptions) -> Self {
        Self { options: options.clone(), ..Self::default() }
    }

    /// How many tokens there are.
    pub(super) fn position(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.state = Language::next_state(self.state, entry);
        self.entries.push(entry);
    }

    /// Forgets all from `position` on.
    pub(super) fn truncate(&mut self, position: usize) {
        self.entries.truncate(position);
        self.state = self.entries.iter().fold(0, |state, &entry| Language::next_state(state, entry));
    }
}

/// What the sessions of a model share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) language: Language,
    pub(super) memory: Memory,
    /// Whether logits are NaN.
    pub(super) broken: bool,
    pub(super) info: ModelInfo,
    pub(super) capabilities: Capabilities,
    /// How long a pass takes at least.
    pub(super) delay: Duration,
    pub(super) faults: Option<Faults>,
    pub(super) adapters: Option<AdapterRoom>,
}

impl Shared {
    /// The logits after the last token.
    pub(super) fn logits(&self, cache: &Cache) -> Result<Vec<f32>> {
        if self.broken {
            return Err(Error::not_a_number("step"));
        }
        Ok(self.language.logits_of(self.attended(cache)))
    }

    /// The hidden state of the last token.
    pub(super) fn hidden(&self, cache: &Cache) -> Vec<f32> {
        if self.broken {
            return vec![f32::NAN; Language::HIDDEN];
        }
        Language::hidden_of(self.attended(cache))
    }

    /// What the last token has seen.
    fn attended(&self, cache: &Cache) -> u64 {
        let entries = &cache.entries;
        match self.memory {
            Memory::Full => Language::attend(entries),
            Memory::Window(window) => {
                let seen = entries.len().saturating_sub(window);
                Language::attend(entries.get(seen..).unwrap_or_default())
            }
            Memory::Recurrent => cache.state,
        }
    }
}

pub(super) struct ReferenceModel(pub(super) Arc<Shared>);

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

    fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
        let unclaimed = || Capabilities::unclaimed("load adapter", "adapters");
        self.0.adapters.as_ref().ok_or_else(unclaimed)?.load(source)
    }
}
