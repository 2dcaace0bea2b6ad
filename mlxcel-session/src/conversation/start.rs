//! Starts and restores conversations.

use std::path::Path;

#[cfg(doc)]
use mlxcel_core::ErrorKind;
use mlxcel_core::{InferenceSession, Result, SequenceOptions, SessionOptions, StateIdentity};

use super::shared::SharedSession;
use super::{Conversation, saved};
use crate::chat::{ChatOptions, Message};
use crate::model::Model;

impl Model {
    /// Starts a multi-turn conversation on one sequence, so that earlier turns are not computed again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer or chat template, and those of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn conversation(&self) -> Result<Conversation> {
        let mut session = open_session(self)?;
        let sequence = session.open()?;
        Ok(Conversation::on(self.clone(), session, sequence))
    }

    /// Resumes a conversation written by [`Conversation::save`] or [`Conversation::save_with_cache`].
    ///
    /// A checksum detects damage, not forgery: restore only files that you would trust as input, since a
    /// forged file can contain any messages and any cache.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the file is not a complete conversation of a known version,
    /// [`ErrorKind::InvalidInput`] if its cache is of another model, engine or precision, or of an adapter,
    /// [`ErrorKind::Io`] if it cannot be read, and the errors of [`conversation`](Self::conversation) and of
    /// [`InferenceSession::restore`].
    pub fn restore_conversation(&self, path: impl AsRef<Path>) -> Result<Conversation> {
        self.restore_conversation_with(path, &SequenceOptions::default())
    }

    /// As [`restore_conversation`](Self::restore_conversation), for a conversation whose last answer was
    /// generated with an adapter: its cache continues with that adapter only.
    ///
    /// ```no_run
    /// use mlxcel_session::{AdapterLimits, Model, OpenOptions, Options, SequenceOptions};
    ///
    /// let room = AdapterLimits::new(8, 16);
    /// let model = Model::open_with("models/llama", &OpenOptions::default().with_adapters(room))?;
    /// let poems = model.load_adapter("adapters/poems")?;
    /// let own = SequenceOptions::default().with_adapter(&poems);
    /// let mut conversation = model.restore_conversation_with("poems.conversation", &own)?;
    /// conversation.say("Another one, please.", &Options::new(40).with_adapter(&poems))?.complete()?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`restore_conversation`](Self::restore_conversation); [`ErrorKind::InvalidInput`] if its
    /// cache is of another adapter or of none, or if the adapter was loaded into another model.
    pub fn restore_conversation_with(
        &self,
        path: impl AsRef<Path>,
        options: &SequenceOptions,
    ) -> Result<Conversation> {
        let identity = StateIdentity::of_sequence(self.info(), options);
        let (messages, cache) = saved::read(path.as_ref(), &identity, self.capabilities())?;
        let mut session = open_session(self)?;
        let (sequence, tokens) = match cache {
            Some((tokens, snapshot)) => (session.restore_with(&snapshot, options)?, tokens),
            None => (session.open_with(options)?, Vec::new()),
        };
        let mut conversation = Conversation::on(self.clone(), session, sequence);
        (conversation.messages, conversation.tokens) = (messages, tokens);
        conversation.options.clone_from(options);
        Ok(conversation)
    }
}

/// A session of `model`; fails early if it has no template for messages.
fn open_session(model: &Model) -> Result<SharedSession> {
    model.tokenizer()?.render_chat(&[Message::user("")], &ChatOptions::default())?;
    Ok(SharedSession::new(model.engine().open_session(&SessionOptions::default())?))
}
