//! Several turns on one sequence.

use mlxcel_core::{InferenceSession, Result, SequenceId, SessionOptions, TokenId};

use crate::model::Place;
use crate::stream::Record;
use crate::{ChatOptions, Detokenizer, Message, Model, Options, TextStream};

/// A conversation that keeps its KV cache: each turn computes only what the last one did not leave there.
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
pub struct Conversation {
    model: Model,
    session: Box<dyn InferenceSession>,
    sequence: SequenceId,
    messages: Vec<Message>,
    chat: ChatOptions,
    /// What the sequence was fed, and what it was to be fed next.
    tokens: Vec<TokenId>,
    /// The running or last answer.
    record: Record,
    /// Whether the last message still waits for its answer to be written down.
    asked: bool,
}

impl Conversation {
    pub(crate) fn new(model: Model) -> Result<Self> {
        // Fails early where there is no template.
        model.tokenizer()?.render_chat(&[Message::user("")], &ChatOptions::default())?;
        let mut session = model.engine().open_session(&SessionOptions::default())?;
        let sequence = session.open()?;
        Ok(Self {
            model,
            session,
            sequence,
            messages: Vec::new(),
            chat: ChatOptions::default(),
            tokens: Vec::new(),
            record: Record::default(),
            asked: false,
        })
    }

    /// Adds a message without asking for an answer: instructions, or what was said elsewhere.
    pub fn push(&mut self, message: Message) {
        self.settle();
        self.messages.push(message);
    }

    /// Sets the variables of the chat template.
    pub fn set_chat_options(&mut self, options: ChatOptions) {
        self.chat = options;
    }

    /// Everything that was said; an answer that was broken off stands as far as it came.
    pub fn messages(&mut self) -> &[Message] {
        self.settle();
        &self.messages
    }

    /// Forgets the oldest turn: the first message of the user, and what followed until the next one. Instructions stay. False
    /// where there is no turn.
    ///
    /// After [`ErrorKind::CapacityExceeded`](crate::ErrorKind::CapacityExceeded) this makes room; the next turn computes its prompt
    /// anew from where it differs.
    pub fn forget_oldest_turn(&mut self) -> bool {
        self.settle();
        let is_user = |message: &Message| message.role == "user";
        let Some(first) = self.messages.iter().position(is_user) else { return false };
        let next = self.messages[first + 1..].iter().position(is_user);
        self.messages.drain(first..next.map_or(self.messages.len(), |next| first + 1 + next));
        true
    }

    /// How many tokens of the context are in use.
    ///
    /// # Errors
    ///
    /// Those of [`InferenceSession::state`].
    pub fn position(&self) -> Result<usize> {
        Ok(self.session.state(self.sequence)?.position)
    }

    /// Says `text` as the user and answers it.
    ///
    /// # Errors
    ///
    /// Those of [`Model::chat`], after which the text is not part of the conversation.
    pub fn say(&mut self, text: &str, options: &Options) -> Result<TextStream<'_>> {
        self.push(Message::user(text));
        match self.prepare() {
            Ok((prompt, common)) => self.answer(&prompt, common, options),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Writes down the answer of the last turn.
    fn settle(&mut self) {
        let record = std::mem::take(&mut self.record);
        self.tokens.extend_from_slice(&record.tokens);
        if std::mem::take(&mut self.asked) {
            self.messages.push(Message::assistant(record.text));
        }
    }

    /// The whole prompt, and how much of it the sequence holds after what does not belong to it is forgotten.
    fn prepare(&mut self) -> Result<(Vec<TokenId>, usize)> {
        let most_tokens = self.session.capabilities().context;
        let prompt = self.model.tokenizer()?.encode_chat_prompt(&self.messages, &self.chat, most_tokens)?;
        let state = self.session.state(self.sequence)?;
        self.tokens.truncate(state.position);
        let same = self.tokens.iter().zip(&prompt).take_while(|(held, wanted)| held == wanted).count();
        // The last token is computed again where all are held: what follows it is wanted.
        let common = same.min(prompt.len().saturating_sub(1));
        if common == state.position && !state.poisoned {
            return Ok((prompt, common));
        }
        if self.session.capabilities().rewind && !state.poisoned {
            self.session.rewind(self.sequence, common)?;
            self.tokens.truncate(common);
            return Ok((prompt, common));
        }
        self.session.close(self.sequence)?;
        self.sequence = self.session.open()?;
        self.tokens.clear();
        Ok((prompt, 0))
    }

    fn answer(&mut self, prompt: &[TokenId], common: usize, options: &Options) -> Result<TextStream<'_>> {
        let detokenizer = Detokenizer::new(self.model.tokenizer()?.clone(), options.skip_special_tokens);
        let place = Place {
            session: Box::new(&mut *self.session),
            sequence: self.sequence,
            history: &prompt[..common],
            record: Some(&mut self.record),
        };
        match self.model.stream(place, &prompt[common..], options, Some(detokenizer)) {
            Ok(stream) => {
                self.tokens = prompt.to_vec();
                self.asked = true;
                Ok(stream)
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }
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
