//! What a sequence of certain tokens says: computed in a session of its own, in one prompt.

use std::collections::HashMap;
use std::sync::Arc;

use mlxcel_core::{Control, InferenceSessionExt, Model, Row, RowResult, SessionOptions, TokenId};

/// How many answers are kept.
const MOST: usize = 4096;

pub(super) struct Oracle {
    model: Arc<dyn Model>,
    known: HashMap<Vec<TokenId>, Vec<f32>>,
}

impl Oracle {
    pub(super) fn new(model: Arc<dyn Model>) -> Self {
        Self { model, known: HashMap::new() }
    }

    pub(super) fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// The logits after `tokens`.
    ///
    /// # Panics
    ///
    /// Where the model has none.
    #[allow(clippy::panic, reason = "a finding")]
    pub(super) fn logits(&mut self, tokens: &[TokenId]) -> &[f32] {
        if self.known.len() > MOST {
            self.known.clear();
        }
        let model = &self.model;
        self.known.entry(tokens.to_vec()).or_insert_with(|| {
            let answer = model.open_session(&SessionOptions::default()).and_then(|mut session| {
                let sequence = session.open()?;
                session.run_row(Row::logits(sequence, tokens), &Control::default())
            });
            match answer.and_then(RowResult::into_logits) {
                Ok(logits) => logits,
                other => panic!("no logits after {tokens:?}: {other:?}"),
            }
        })
    }
}
