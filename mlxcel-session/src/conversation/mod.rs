//! Multi-turn conversations on one sequence.

mod saved;
mod shared;
mod start;

use std::ops::Range;
use std::path::Path;

use mlxcel_core::{
    Error, ErrorKind, InferenceSession, Result, SequenceId, SequenceOptions, SequenceState, SessionOptions,
    TokenId,
};

use crate::chat::Message;
use crate::detokenize::Detokenizer;
use crate::generation::TextGeneration;
use crate::model::Model;
use crate::options::Options;
use crate::prefix::common;
use crate::reasoning::ReasoningSplitter;
use crate::stream::{Record, TextStream};
use crate::tokenizer::Tokenizer;
use shared::SharedSession;

/// What a conversation does if a turn does not fit into the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Returns [`ErrorKind::CapacityExceeded`], whose message lists what the application can do.
    #[default]
    Refuse,
    /// Drops as many of the oldest turns as necessary, but no system message.
    /// [`Conversation::forgotten_turns`] counts them.
    ForgetOldest,
}

/// A conversation that keeps its KV cache: each turn computes only tokens that are not in the cache yet.
///
/// ```no_run
/// use mlxcel_session::{Model, Options};
///
/// let model = Model::open("models/llama-3.2-1b-instruct")?;
/// let mut conversation = model.conversation()?;
/// for question in ["Who was Ada Lovelace?", "And her father?"] {
///     for piece in conversation.say(question, &Options::default())? {
///         print!("{}", piece?);
///     }
///     println!();
/// }
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
///
/// Turns can be [undone](Self::undo) and [retried](Self::retry), and a conversation can be
/// [forked](Self::fork) and [saved](Self::save). If the model marks its
/// [reasoning](crate::Tokenizer::reasoning) and the template expects it separately, the reasoning of an
/// answer is stored in its message's field `reasoning_content`.
pub struct Conversation {
    model: Model,
    session: SharedSession,
    /// None if no other one could be opened in place of the last one.
    sequence: Option<SequenceId>,
    messages: Vec<Message>,
    /// What the sequence was opened with: the adapter of the last answer.
    options: SequenceOptions,
    when_full: WhenFull,
    forgotten: usize,
    /// What the sequence was fed, and what it was to be fed next.
    tokens: Vec<TokenId>,
    /// The running or last answer.
    record: Record,
    /// Where an answer still waits to be written down: what splits it.
    asked: Option<ReasoningSplitter>,
}

impl Conversation {
    fn on(model: Model, session: SharedSession, sequence: SequenceId) -> Self {
        Self {
            model,
            session,
            sequence: Some(sequence),
            messages: Vec::new(),
            options: SequenceOptions::default(),
            when_full: WhenFull::default(),
            forgotten: 0,
            tokens: Vec::new(),
            record: Record::default(),
            asked: None,
        }
    }

    /// Adds a message without generating an answer, such as a system message or earlier history.
    pub fn push(&mut self, message: Message) {
        self.settle();
        self.messages.push(message);
    }

    /// Sets what happens if a turn does not fit into the context.
    pub fn set_when_full(&mut self, when_full: WhenFull) {
        self.when_full = when_full;
    }

    /// All messages. An interrupted answer is included as far as it was generated.
    pub fn messages(&mut self) -> &[Message] {
        self.settle();
        &self.messages
    }

    /// Drops the oldest turn: the first user message and everything up to the next one. System messages stay.
    /// Returns false if there is no turn.
    ///
    /// Call it after [`ErrorKind::CapacityExceeded`] to make room. The next turn recomputes its prompt from
    /// the first difference.
    pub fn forget_oldest_turn(&mut self) -> bool {
        self.settle();
        match turns(&self.messages).next() {
            Some(oldest) => {
                self.messages.drain(oldest);
                true
            }
            None => false,
        }
    }

    /// How many turns [`WhenFull::ForgetOldest`] has dropped.
    pub fn forgotten_turns(&self) -> usize {
        self.forgotten
    }

    /// Truncates the conversation to its first `messages` messages.
    pub fn truncate(&mut self, messages: usize) {
        self.settle();
        self.messages.truncate(messages);
    }

    /// Removes the last turn, the last user message and what followed, and returns that message. `None` if
    /// there is no turn.
    pub fn undo(&mut self) -> Option<Message> {
        self.settle();
        let last = turns(&self.messages).last()?;
        self.messages.drain(last).next()
    }

    /// How many tokens of the context are in use.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::state`].
    pub fn position(&self) -> Result<usize> {
        Ok(self.state()?.map_or(0, |(_, state)| state.position))
    }

    /// The sequence and its state, if there is one.
    fn state(&self) -> Result<Option<(SequenceId, SequenceState)>> {
        self.sequence.map(|sequence| Ok((sequence, self.session.state(sequence)?))).transpose()
    }

    /// Adds the user message `text` and generates the answer. [`Options::chat`] sets how the prompt is
    /// rendered.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CapacityExceeded`] if it does not fit into the context and [`WhenFull::Refuse`] is set,
    /// or does not fit even without earlier turns; and the errors of [`Model::chat`]. After an error, the
    /// text is not part of the conversation.
    pub fn say(&mut self, text: &str, options: &Options) -> Result<TextStream<'_>> {
        self.push(Message::user(text));
        let question = self.messages.len() - 1;
        self.answer(question, question, options)
    }

    /// Generates a new answer to the last user message and replaces the old one. When sampling, set another
    /// [seed](Options::with_seed) to get another answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if there is no user message, and the errors of [`say`](Self::say). After
    /// an error, the old answer is kept.
    pub fn retry(&mut self, options: &Options) -> Result<TextStream<'_>> {
        self.settle();
        let Some(turn) = turns(&self.messages).last() else {
            return Err(Error::new(ErrorKind::InvalidInput, "answer again", "the conversation is empty"));
        };
        self.answer(turn.start, self.messages.len(), options)
    }

    /// Returns an independent copy of the conversation. It reuses the KV cache if the engine claims
    /// [fork](mlxcel_core::Capabilities::fork) or [snapshot](mlxcel_core::Capabilities::snapshot). Forked
    /// conversations share a session, which runs one step at a time.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::fork`] and
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn fork(&mut self) -> Result<Self> {
        self.settle();
        let held = self.state()?.filter(|(_, state)| !state.poisoned);
        let (session, sequence, position) =
            self.branch(held.map(|(sequence, state)| (sequence, state.position)))?;
        let mut branch = Self::on(self.model.clone(), session, sequence);
        branch.messages.clone_from(&self.messages);
        branch.tokens = self.tokens[..position.min(self.tokens.len())].to_vec();
        (branch.when_full, branch.forgotten) = (self.when_full, self.forgotten);
        branch.options.clone_from(&self.options);
        Ok(branch)
    }

    /// A sequence for a branch, and how many tokens it holds: as many as the one that is `held`, if it can be
    /// copied.
    fn branch(&mut self, held: Option<(SequenceId, usize)>) -> Result<(SharedSession, SequenceId, usize)> {
        let capabilities = self.session.capabilities();
        let (fork, snapshot) = (capabilities.fork, capabilities.snapshot);
        if let Some((sequence, position)) = held.filter(|_| fork) {
            match self.session.fork(sequence) {
                Ok(sequence) => return Ok((self.session.clone(), sequence, position)),
                // A session of its own has room.
                Err(error) if error.kind() == ErrorKind::CapacityExceeded => {}
                Err(error) => return Err(error),
            }
        }
        let session = self.model.engine().open_session(&SessionOptions::default())?;
        let mut session = SharedSession::new(session);
        if let Some((sequence, position)) = held.filter(|_| snapshot) {
            let copy = self.session.snapshot(sequence)?;
            let sequence = session.restore_with(&copy, &self.options)?;
            return Ok((session, sequence, position));
        }
        let sequence = session.open_with(&self.options)?;
        Ok((session, sequence, 0))
    }

    /// Writes the messages to the file `path` as JSON. [`Model::restore_conversation`] reads it with any
    /// model and computes the messages again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if its folder does not exist, [`ErrorKind::Io`] if it cannot be written; an
    /// existing file is kept on failure.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.settle();
        saved::write(path.as_ref(), &self.messages, None)
    }

    /// As [`save`](Self::save), with the KV cache: the restored conversation continues without recomputing,
    /// but only with the same model, engine, precision and adapter. Needs
    /// [`Capabilities::snapshot`](mlxcel_core::Capabilities::snapshot).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine does not support snapshots, and the errors of
    /// [`InferenceSession::snapshot`] and [`save`](Self::save).
    pub fn save_with_cache(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.settle();
        let Some(sequence) = self.sequence else { return self.save(path) };
        let snapshot = self.session.snapshot(sequence)?;
        let held = &self.tokens[..snapshot.position().min(self.tokens.len())];
        saved::write(path.as_ref(), &self.messages, Some((held, &snapshot)))
    }

    /// Reads the messages of a saved conversation, whichever model its cache belongs to.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::restore_conversation`], except those about the cache.
    pub fn read_messages(path: impl AsRef<Path>) -> Result<Vec<Message>> {
        saved::read_messages(path.as_ref())
    }

    /// Writes down the answer of the last turn.
    fn settle(&mut self) {
        let record = std::mem::take(&mut self.record);
        self.tokens.extend_from_slice(&record.tokens);
        if let Some(splitter) = self.asked.take() {
            self.messages.push(answer_message(&self.model, record.text, splitter));
        }
    }

    /// Answers the message at `question`, and forgets those after it. Where it fails, the first `stay`
    /// messages do.
    fn answer(&mut self, question: usize, stay: usize, options: &Options) -> Result<TextStream<'_>> {
        let later = self.messages.split_off(question + 1);
        match self.begin(options) {
            Ok((generation, sequence)) => {
                let session = Box::new(self.session.clone());
                Ok(TextStream::new(session, sequence, generation, Some(&mut self.record), None))
            }
            Err(error) => {
                self.messages.extend(later);
                self.messages.truncate(stay);
                Err(error)
            }
        }
    }

    /// Prepares the sequence to answer the messages.
    fn begin(&mut self, options: &Options) -> Result<(TextGeneration, SequenceId)> {
        let deadline = options.deadline()?;
        let (prompt, messages, forgotten) = self.fitting(options)?;
        let detokenizer = Detokenizer::new(self.model.tokenizer()?.clone(), options.skip_special_tokens);
        let mut generation = TextGeneration::new(&self.model, &prompt, options, deadline, Some(detokenizer))?;
        let splitter = generation.splitter()?;
        let (sequence, computed) = self.hold(&prompt, generation.sequence_options())?;
        generation.set_computed(computed);
        (self.tokens, self.messages, self.asked) = (prompt, messages, Some(splitter));
        self.forgotten += forgotten;
        Ok((generation, sequence))
    }

    /// The prompt, the messages that it renders, and how many turns have to be forgotten for it.
    fn fitting(&self, options: &Options) -> Result<(Vec<TokenId>, Vec<Message>, usize)> {
        let (tokenizer, context) = (self.model.tokenizer()?, self.session.capabilities().context);
        let (mut messages, mut forgotten) = (self.messages.clone(), 0);
        loop {
            let error = match tokenizer.encode_chat_prompt(&messages, &options.chat, context) {
                Ok(prompt) if prompt.len() <= context => return Ok((prompt, messages, forgotten)),
                Ok(prompt) => {
                    let message = "the prompt is longer than the context";
                    Error::new(ErrorKind::CapacityExceeded, "answer", message)
                        .with_context("tokens", prompt.len())
                        .with_context("context", context)
                }
                Err(error) if error.kind() == ErrorKind::CapacityExceeded => error,
                Err(error) => return Err(error),
            };
            // The last turn is what is to be answered.
            match turns(&messages).next().filter(|turn| turn.end < messages.len()) {
                Some(oldest) if self.when_full == WhenFull::ForgetOldest => {
                    messages.drain(oldest);
                    forgotten += 1;
                }
                oldest => return Err(full(error, context, oldest.is_some())),
            }
        }
    }

    /// The sequence and how much of `prompt` it holds for these `options`, after what does not belong to it is
    /// forgotten.
    fn hold(&mut self, prompt: &[TokenId], options: &SequenceOptions) -> Result<(SequenceId, usize)> {
        // What was computed with another adapter is of no use.
        let held = self.state()?.filter(|(_, state)| self.options == *options && !state.poisoned);
        let Some((sequence, state)) = held else { return self.reopen(options) };
        self.tokens.truncate(state.position);
        // The last token is computed again where all are held: what follows it is wanted.
        let common = common(&self.tokens, prompt).min(prompt.len().saturating_sub(1));
        if common == state.position {
            return Ok((sequence, common));
        }
        if self.session.capabilities().rewind {
            self.session.rewind(sequence, common)?;
            return Ok((sequence, common));
        }
        self.reopen(options)
    }

    /// An empty sequence in place of the old one.
    fn reopen(&mut self, options: &SequenceOptions) -> Result<(SequenceId, usize)> {
        let opened = self.session.open_with(options);
        // Without room for both, the old one goes first.
        let opened = match opened {
            Err(error) if error.kind() == ErrorKind::CapacityExceeded && self.sequence.is_some() => None,
            opened => Some(opened?),
        };
        if let Some(old) = self.sequence.take() {
            self.session.close(old)?;
        }
        self.tokens.clear();
        let sequence = opened.map_or_else(|| self.session.open_with(options), Ok)?;
        self.sequence = Some(sequence);
        self.options.clone_from(options);
        Ok((sequence, 0))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // Branches may go on in the session; what this one held is free. A session that failed has nothing to
        // free.
        let _ = self.sequence.map(|sequence| self.session.close(sequence));
    }
}

/// The message that an answer becomes, with separate reasoning if the template supports it.
fn answer_message(model: &Model, text: String, mut splitter: ReasoningSplitter) -> Message {
    if !model.tokenizer().is_ok_and(Tokenizer::reads_reasoning) {
        return Message::assistant(text);
    }
    let mut parts = splitter.push(&text);
    parts.extend(splitter.finish());
    Message::of_parts(parts)
}

/// Where the turns are: a message of the user each, and what follows until the next one.
fn turns(messages: &[Message]) -> impl Iterator<Item = Range<usize>> + use<> {
    let starts: Vec<usize> =
        messages.iter().enumerate().filter(|(_, message)| message.role == "user").map(|(at, _)| at).collect();
    let end = messages.len();
    (0..starts.len()).map(move |turn| starts[turn]..starts.get(turn + 1).copied().unwrap_or(end))
}

/// Says what can be done where the context is full.
fn full(error: Error, context: usize, has_older_turns: bool) -> Error {
    let message = if has_older_turns {
        "the conversation does not fit into the context; forget its oldest turns (forget_oldest_turn, or WhenFull::ForgetOldest), or open \
         the model with a larger capacity"
    } else {
        "this turn does not fit into the context even alone; shorten it, or open the model with a larger capacity"
    };
    Error::new(ErrorKind::CapacityExceeded, "answer", message)
        .with_context("context", context)
        .with_source(error)
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation")
            .field("model", &self.model)
            .field("sequence", &self.sequence)
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}
