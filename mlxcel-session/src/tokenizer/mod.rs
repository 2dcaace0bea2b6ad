//! Text to token ids and back, as the checkpoint's own tokenizer does it.

mod added;
mod bytes;
mod charsmap;
mod file;
mod frame;
mod normalizers;
mod splitting;
mod steps;
mod vocabulary;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result, TokenId};
use serde_json::{Map, Value};

use crate::chat::{ChatOptions, ChatTemplate, Message, ReasoningFormat, Rendered};
use crate::{files, tools};
use file::Checked;

/// The file that holds the tokenizer itself.
const FILE: &str = "tokenizer.json";

/// A checkpoint's tokenizer, its special tokens and its chat template; clones share them.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    tokenizer: Checked,
    special_tokens: SpecialTokens,
    chat_template: Option<ChatTemplate>,
    reasoning: Option<ReasoningFormat>,
    /// Special tokens that are shown where others are left out, since they mark reasoning or calls.
    marks: Vec<TokenId>,
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint folder: `tokenizer.json`, and beside it, where they are, `tokenizer_config.json`,
    /// `special_tokens_map.json` and `chat_template.jinja`. Or that of a GGUF file, which has all of it in its metadata.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where there is no `tokenizer.json`; [`ErrorKind::Corrupt`] where a file is not what it claims to
    /// be; [`ErrorKind::Io`] where one cannot be read.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let source = ModelSource::from(folder.as_ref());
        Self::from_source(&source)?.ok_or_else(|| missing(&source))
    }

    /// Reads the tokenizer of a model; none where it has none.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), but for a missing tokenizer.
    pub fn from_source(source: &ModelSource) -> Result<Option<Self>> {
        let Some(bytes) = files::read(source, FILE)? else { return Ok(None) };
        let config: Map<String, Value> =
            files::read_json(source, "tokenizer_config.json")?.unwrap_or_default();
        let special_tokens = SpecialTokens::of_checkpoint(source, &config)?;
        let chat_template = ChatTemplate::of_checkpoint(source, &config, &special_tokens)?;
        let is_marker = |token: &str| chat_template.as_ref().is_some_and(|template| template.spells(token));
        let tokenizer = Checked::read(&bytes, is_marker)
            .map_err(|fault| files::corrupt(source, FILE, "it is not a tokenizer").with_source(fault))?;
        let reasoning =
            ReasoningFormat::find(chat_template.as_ref(), |token| tokenizer.token_id(token).is_some());
        let marks = reasoning.iter().flat_map(ReasoningFormat::marks);
        let marks = marks.chain(tools::marks(chat_template.as_ref()).iter().copied());
        let marks = marks.filter_map(|mark| tokenizer.token_id(mark)).collect();
        Ok(Some(Self(Arc::new(Inner { tokenizer, special_tokens, chat_template, reasoning, marks }))))
    }

    /// The token ids of `text`, with the tokens that the model wants around a plain text (such as the one that begins it) if
    /// `add_special_tokens`. Special tokens that are written out in `text` are recognised.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the tokenizer cannot express the text; [`ErrorKind::CapacityExceeded`] for one beyond 16
    /// MiB, or less where the file's steps can make a text grow.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>> {
        self.0.tokenizer.encode(text, add_special_tokens)
    }

    /// The tokens that the model wants in front of a text.
    pub fn tokens_before(&self) -> &[TokenId] {
        self.0.tokenizer.before()
    }

    /// As [`encode`](Self::encode), for a prompt of at most `most_tokens` tokens: one that is surely longer is refused without work.
    pub(crate) fn encode_prompt(
        &self,
        text: &str,
        add_special_tokens: bool,
        most_tokens: usize,
    ) -> Result<Vec<TokenId>> {
        self.0.tokenizer.check_length(text, most_tokens)?;
        self.encode(text, add_special_tokens)
    }

    /// The text of `tokens`; bytes that are no UTF-8 become U+FFFD. Special tokens are left out if `skip_special_tokens`, and
    /// ids that the tokenizer does not know always are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the tokenizer cannot decode them.
    pub fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String> {
        self.0.tokenizer.decode(tokens, skip_special_tokens)
    }

    /// The prompt of a conversation by the checkpoint's chat template, as text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where the checkpoint has no chat template; [`ErrorKind::InvalidInput`] for no message at all and
    /// where the template refuses the messages.
    pub fn render_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        self.render_parts(messages, options).map(|rendered| rendered.text)
    }

    fn render_parts(&self, messages: &[Message], options: &ChatOptions) -> Result<Rendered> {
        if messages.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "apply chat template", "there is no message"));
        }
        let template = self.chat_template().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "apply chat template",
                "the checkpoint has no chat template; give the prompt as plain text",
            )
        })?;
        template.render_parts(messages, options)
    }

    /// The template writes the special tokens itself.
    fn encode_rendered(&self, prompt: &Rendered) -> Result<Vec<TokenId>> {
        self.0.tokenizer.encode_parts(&prompt.text, &prompt.origins)
    }

    /// The prompt of a conversation by the checkpoint's chat template, as token ids.
    ///
    /// What messages, tools and documents say is text, whatever it spells: a control token in it is written in other tokens, unless
    /// [`ChatOptions::special_tokens_in_text`] asks for it. Special tokens come from the template alone, and tokens such as `<think>`
    /// that are not special but spelled out in the template from what the assistant said as well. A text that spells none has the ids
    /// of [`encode`](Self::encode).
    ///
    /// # Errors
    ///
    /// Those of [`render_chat`](Self::render_chat) and [`encode`](Self::encode).
    pub fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<TokenId>> {
        self.encode_rendered(&self.render_parts(messages, options)?)
    }

    /// As [`encode_chat`](Self::encode_chat), for a prompt of at most `most_tokens` tokens.
    pub(crate) fn encode_chat_prompt(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        most_tokens: usize,
    ) -> Result<Vec<TokenId>> {
        let prompt = self.render_parts(messages, options)?;
        self.0.tokenizer.check_length(&prompt.text, most_tokens)?;
        self.encode_rendered(&prompt)
    }

    /// As [`decode`](Self::decode), and tokens that mark reasoning are shown even where special ones are left out.
    pub(crate) fn decode_marked(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String> {
        let marks = &self.0.marks;
        if !skip_special_tokens || !tokens.iter().any(|token| marks.contains(token)) {
            return self.decode(tokens, skip_special_tokens);
        }
        let shown = tokens.iter().copied().filter(|token| marks.contains(token) || !self.is_special(*token));
        self.decode(&shown.collect::<Vec<_>>(), false)
    }

    /// Whether `id` is a special token, which [`decode`](Self::decode) can leave out.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.0.tokenizer.is_special(id)
    }

    /// How the model marks its reasoning, as far as its chat template or its vocabulary tell.
    pub fn reasoning(&self) -> Option<&ReasoningFormat> {
        self.0.reasoning.as_ref()
    }

    /// Whether the chat template takes the reasoning of a message apart from its content.
    pub(crate) fn reads_reasoning(&self) -> bool {
        let reads = |template: &ChatTemplate| {
            ["reasoning_content", ".thinking", "'thinking'", "\"thinking\""]
                .iter()
                .any(|field| template.spells(field))
        };
        self.reasoning().is_some_and(ReasoningFormat::has_channels) || self.chat_template().is_some_and(reads)
    }

    /// The chat template, where the checkpoint has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.0.chat_template.as_ref()
    }

    /// How many tokens it knows, added ones included. A model's vocabulary may be padded and larger.
    pub fn vocabulary_size(&self) -> usize {
        self.0.tokenizer.vocabulary_size()
    }

    /// The id of the token that is written `token`.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.0.tokenizer.token_id(token)
    }

    /// How the token `id` is written in the vocabulary (not the text that it stands for).
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.0.tokenizer.token(id)
    }

    /// The bytes that the token `id` adds to a text in which it is not the first; none for an id that it does not know. They may be a part
    /// of a character. A token that begins a text may lose the space that it begins with.
    ///
    /// ```no_run
    /// # let tokenizer = mlxcel_session::Tokenizer::open("models/llama")?;
    /// let bytes: Vec<u8> = tokenizer.encode("naïve 😀", false)?.iter().flat_map(|&id| tokenizer.token_bytes(id)).flatten().collect();
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    pub fn token_bytes(&self, id: TokenId) -> Option<Vec<u8>> {
        self.0.tokenizer.token_bytes(id)
    }

    /// The tokens whose bytes contain `text`, such as all that have a line break in them: for
    /// [`Dry::breakers`](crate::Dry::breakers), bias and limits. It looks at the whole vocabulary.
    pub fn tokens_containing(&self, text: &str) -> Vec<TokenId> {
        let text = text.as_bytes();
        let contains = |bytes: Vec<u8>| text.is_empty() || bytes.windows(text.len()).any(|part| part == text);
        let tokens = 0..TokenId::try_from(self.vocabulary_size()).unwrap_or(TokenId::MAX);
        tokens.filter(|&token| self.token_bytes(token).is_some_and(contains)).collect()
    }

    /// The id of a special token by its role, such as `bos_token` or `eos_token`.
    pub fn special_token_id(&self, role: &str) -> Option<TokenId> {
        self.0.special_tokens.get(role).and_then(|token| self.token_id(token))
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary_size", &self.vocabulary_size())
            .field("special_tokens", &self.0.special_tokens)
            .field("chat_template", &self.chat_template().is_some())
            .finish()
    }
}

/// What is said where a text function is called on a model without tokenizer.
pub(crate) fn missing(source: &ModelSource) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "open tokenizer",
        "the model has no tokenizer.json; without it only token ids can be given and taken",
    )
    .with_context("path", files::locate(source, FILE))
}

/// The special tokens by their role, as `tokenizer_config.json` or the older `special_tokens_map.json` name them.
#[derive(Debug)]
pub(crate) struct SpecialTokens(Vec<(&'static str, String)>);

impl SpecialTokens {
    const ROLES: [&'static str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

    fn of_checkpoint(source: &ModelSource, config: &Map<String, Value>) -> Result<Self> {
        let map: Map<String, Value> =
            files::read_json(source, "special_tokens_map.json")?.unwrap_or_default();
        let text = |file: &Map<String, Value>, role: &str| -> Option<String> {
            let value = file.get(role)?;
            // A token is its text, or an object that says more about it.
            Some(value.as_str().or_else(|| value.get("content")?.as_str())?.to_owned())
        };
        let tokens = Self::ROLES.into_iter().filter_map(|role| {
            let token = match config.get(role) {
                Some(_) => text(config, role),
                None => text(&map, role),
            };
            Some((role, token?))
        });
        Ok(Self(tokens.collect()))
    }

    /// Roles and tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(role, token)| (*role, token.as_str()))
    }

    fn get(&self, role: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == role).map(|(_, token)| token)
    }
}
