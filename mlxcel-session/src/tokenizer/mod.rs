//! The checkpoint's tokenizer: text to token ids and back.

mod added;
mod bytes;
mod charsmap;
mod file;
mod frame;
mod normalizers;
mod splitting;
mod steps;
mod vocabulary;
mod world;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result, TokenId};
use mlxcel_template::Rendered;
use serde_json::{Map, Value};

use crate::chat::{ChatOptions, ChatTemplate, Message, ReasoningFormat, SpecialTokens};
use crate::files;
use file::Checked;
use frame::Frame;

/// The file that holds the tokenizer itself.
const FILE: &str = "tokenizer.json";
/// The vocabulary of RWKV World, which stands in the place of that file.
const RWKV_WORLD: &str = "rwkv_vocab_v20230424.txt";

/// A checkpoint's tokenizer with its special tokens and chat template. Cheap to clone.
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
    /// Reads the tokenizer of a checkpoint folder: `tokenizer.json`, or `rwkv_vocab_v20230424.txt` of RWKV
    /// World, and if they exist `tokenizer_config.json`, `special_tokens_map.json` and
    /// `chat_template.jinja`. For a GGUF file, all of it is in the metadata.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is neither; [`ErrorKind::Corrupt`] if a file is invalid;
    /// [`ErrorKind::Io`] if one cannot be read.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let source = ModelSource::from(folder.as_ref());
        Self::from_source(&source)?.ok_or_else(|| missing(&source))
    }

    /// Reads the tokenizer of a model; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), except for a missing tokenizer.
    pub fn from_source(source: &ModelSource) -> Result<Option<Self>> {
        Self::read(source, false)
    }

    /// As [`from_source`](Self::from_source); with `lower_case` text is read in small letters, but for
    /// special tokens.
    pub(crate) fn read(source: &ModelSource, lower_case: bool) -> Result<Option<Self>> {
        let (name, bytes) = match files::read(source, FILE)? {
            Some(bytes) => (FILE, bytes),
            None => match files::read(source, RWKV_WORLD)? {
                Some(bytes) => (RWKV_WORLD, bytes),
                None => return Ok(None),
            },
        };
        let config: Map<String, Value> =
            files::read_json(source, "tokenizer_config.json")?.unwrap_or_default();
        let mut special_tokens = SpecialTokens::of_checkpoint(source, &config)?;
        let chat_template = ChatTemplate::of_checkpoint(source, &config, &special_tokens)?;
        let is_marker = |token: &str| chat_template.as_ref().is_some_and(|template| template.spells(token));
        let tokenizer = match name {
            FILE => Checked::read(&bytes, lower_case, is_marker),
            _ => {
                // Published settings name a blank line, which is an ordinary token within texts.
                special_tokens.set_end(world::END_OF_TEXT);
                Checked::of_world(&bytes, is_marker)
            }
        };
        let tokenizer = tokenizer
            .map_err(|fault| files::corrupt(source, name, "it is not a tokenizer").with_source(fault))?;
        let reasoning =
            ReasoningFormat::find(chat_template.as_ref(), |token| tokenizer.token_id(token).is_some());
        let marks = reasoning.iter().flat_map(ReasoningFormat::marks);
        let marks = marks.chain(chat_template.iter().flat_map(|template| template.style().marks).copied());
        let marks = marks.filter_map(|mark| tokenizer.token_id(mark)).collect();
        Ok(Some(Self(Arc::new(Inner { tokenizer, special_tokens, chat_template, reasoning, marks }))))
    }

    /// Encodes `text`. `add_special_tokens` adds the tokenizer's special tokens around it (such as BOS).
    /// Special tokens spelled out in `text` are parsed as such.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the tokenizer cannot encode the text; [`ErrorKind::CapacityExceeded`]
    /// for a text over 16 MiB, or less if the tokenizer's normalizer can make it grow.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>> {
        self.0.tokenizer.encode(text, add_special_tokens)
    }

    /// The special tokens added before a text.
    pub fn tokens_before(&self) -> &[TokenId] {
        &self.0.tokenizer.frame.before
    }

    /// As [`encode`](Self::encode), for a prompt of at most `most_tokens` tokens: one that is surely longer
    /// is refused without work.
    pub(crate) fn encode_prompt(
        &self,
        text: &str,
        add_special_tokens: bool,
        most_tokens: usize,
    ) -> Result<Vec<TokenId>> {
        self.0.tokenizer.check_length(text, most_tokens)?;
        self.encode(text, add_special_tokens)
    }

    /// As [`encode`](Self::encode), without the last tokens of a text that has more than `most_tokens`, or
    /// without the first if those are to be `from_left`; special tokens around it stay.
    pub(crate) fn encode_part(
        &self,
        text: &str,
        add_special_tokens: bool,
        most_tokens: usize,
        from_left: bool,
    ) -> Result<Vec<TokenId>> {
        let mut tokens = self.encode(text, add_special_tokens)?;
        let Frame { before, after, .. } = &self.0.tokenizer.frame;
        let [before, after] = [before, after].map(|own| if add_special_tokens { own.len() } else { 0 });
        let (end, excess) = (tokens.len().saturating_sub(after), tokens.len().saturating_sub(most_tokens));
        if from_left {
            tokens.drain(before.min(end)..(before + excess).min(end));
        } else {
            tokens.drain(end.saturating_sub(excess)..end);
        }
        Ok(tokens)
    }

    /// Encodes a pair of texts, such as a query and a document, of at most `most_tokens` tokens together: the
    /// tokens with the special tokens of the tokenizer's template for pairs, and the type of each token.
    pub(crate) fn encode_pair(
        &self,
        first: &str,
        second: &str,
        most_tokens: usize,
    ) -> Result<(Vec<TokenId>, Vec<u8>)> {
        let encode = |text: &str| self.encode_prompt(text, false, most_tokens);
        self.0.tokenizer.pair([&encode(first)?, &encode(second)?])
    }

    /// Decodes `tokens`. Invalid UTF-8 becomes U+FFFD. `skip_special_tokens` omits special tokens; unknown
    /// ids are always omitted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the tokenizer cannot decode them.
    pub fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String> {
        self.0.tokenizer.decode(tokens, skip_special_tokens)
    }

    /// Renders a conversation with the checkpoint's chat template, as text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the checkpoint has no chat template; [`ErrorKind::InvalidInput`] for an
    /// empty conversation or if the template raises an exception.
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

    /// Renders a conversation with the checkpoint's chat template, as token ids.
    ///
    /// Messages, tools and documents are encoded as plain text: a control token spelled out in them becomes
    /// ordinary tokens, unless [`ChatOptions::special_tokens_in_text`] is set. Special tokens come from
    /// the template only. Tokens such as `<think>`, which are not special but appear in the template, may
    /// also come from assistant messages. Text without control tokens has the ids of
    /// [`encode`](Self::encode).
    ///
    /// # Errors
    ///
    /// The errors of [`render_chat`](Self::render_chat) and [`encode`](Self::encode).
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

    /// As [`decode`](Self::decode), and tokens that mark reasoning are shown even where special ones are left
    /// out.
    pub(crate) fn decode_marked(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String> {
        let marks = &self.0.marks;
        if !skip_special_tokens || !tokens.iter().any(|token| marks.contains(token)) {
            return self.decode(tokens, skip_special_tokens);
        }
        let shown = tokens.iter().copied().filter(|token| marks.contains(token) || !self.is_special(*token));
        self.decode(&shown.collect::<Vec<_>>(), false)
    }

    /// Whether `id` is a special token, which [`decode`](Self::decode) can omit.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.0.tokenizer.is_special(id)
    }

    /// How the model marks its reasoning, detected from its chat template or vocabulary.
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

    /// The chat template, if the checkpoint has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.0.chat_template.as_ref()
    }

    /// The number of tokens, including added ones. A model's vocabulary may be padded to a larger size.
    pub fn vocabulary_size(&self) -> usize {
        self.0.tokenizer.vocabulary_size()
    }

    /// The id of the token spelled `token`.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.0.tokenizer.token_id(token)
    }

    /// The spelling of the token `id` in the vocabulary, which is not its text.
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.0.tokenizer.token(id)
    }

    /// The bytes that the token `id` adds to a text, except at its beginning, where a leading space may be
    /// dropped. They may be part of a character. `None` for an unknown id.
    ///
    /// ```no_run
    /// # let tokenizer = mlxcel_session::Tokenizer::open("models/llama")?;
    /// let bytes: Vec<u8> = tokenizer.encode("naïve 😀", false)?.iter().flat_map(|&id| tokenizer.token_bytes(id)).flatten().collect();
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    pub fn token_bytes(&self, id: TokenId) -> Option<Vec<u8>> {
        self.0.tokenizer.token_bytes(id)
    }

    /// The tokens whose bytes contain `text`, such as a line break: for
    /// [`Dry::breakers`](crate::Dry::breakers), bias and limits. It scans the whole vocabulary.
    pub fn tokens_containing(&self, text: &str) -> Vec<TokenId> {
        let text = text.as_bytes();
        let contains = |bytes: Vec<u8>| text.is_empty() || bytes.windows(text.len()).any(|part| part == text);
        let tokens = self.0.tokenizer.ids().into_iter();
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

/// The error of text functions on a model without tokenizer.
pub(crate) fn missing(source: &ModelSource) -> Error {
    let refuse = |reason| Error::new(ErrorKind::NotFound, "open tokenizer", reason);
    match source {
        ModelSource::Folder(file) if file.is_file() => {
            refuse("the GGUF file has no tokenizer; use one that was converted with it, or pass token ids")
                .with_context("path", file.display())
        }
        _ if matches!(files::read(source, "vocab.txt"), Ok(Some(_))) => refuse(
            "the model has its vocabulary in vocab.txt only, which is not read; convert it to tokenizer.json with \
             transformers, or pass token ids",
        )
        .with_context("path", files::locate(source, FILE)),
        _ => refuse("the model has no tokenizer.json; download it, or pass token ids")
            .with_context("path", files::locate(source, FILE)),
    }
}
