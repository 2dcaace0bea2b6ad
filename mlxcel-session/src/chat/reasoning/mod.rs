//! Reasoning told apart from the answer, as it comes.

mod channels;
mod tags;

use std::collections::VecDeque;

use mlxcel_core::{Result, TokenId};

use super::ChatTemplate;
use crate::Tokenizer;
use channels::Channels;
use tags::Tags;

/// A part of what a model says. Several parts of one kind in a row are one text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerPart {
    /// What it thinks before it answers.
    Reasoning(String),
    /// The answer.
    Answer(String),
    /// A call of a tool, where the model addresses those as it does readers (gpt-oss). Calls that are written into the answer are a part
    /// of it.
    Call {
        /// Whom it calls, such as `functions.get_weather`.
        to: String,
        /// What it hands over: JSON, as a rule.
        text: String,
    },
}

/// Tags around reasoning that models are trained on.
const TAGS: [(&str, &str); 6] = [
    // DeepSeek R1, Qwen 3, SmolLM3, GLM, Granite 3.3
    ("<think>", "</think>"),
    // Magistral
    ("[THINK]", "[/THINK]"),
    // Seed
    ("<seed:think>", "</seed:think>"),
    // Command A
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    // Phi 4 reasoning, with its own template
    ("<thinking>", "</thinking>"),
    // Granite 3.2
    ("Here is my thought process:", "Here is my response:"),
];

/// How a model marks its reasoning: tags at the beginning of an answer (`<think>…</think>`), or the channels of gpt-oss.
/// [`Tokenizer::reasoning`] tells which a checkpoint has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningFormat(Format);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Tags { open: &'static str, close: &'static str },
    Channels,
}

impl ReasoningFormat {
    /// The format whose marks the template spells out, or the vocabulary has.
    pub(crate) fn find(
        template: Option<&ChatTemplate>,
        has_token: impl Fn(&str) -> bool,
    ) -> Option<ReasoningFormat> {
        let spells = |mark: &str| template.is_some_and(|template| template.spells(mark));
        if [channels::CHANNEL, channels::MESSAGE].into_iter().all(spells) {
            return Some(Self(Format::Channels));
        }
        let tags = |known: &dyn Fn(&str) -> bool| {
            let found = TAGS.into_iter().find(|(open, close)| known(open) && known(close));
            found.map(|(open, close)| Self(Format::Tags { open, close }))
        };
        tags(&spells).or_else(|| tags(&has_token))
    }

    /// The texts that mark parts. They are shown where special tokens are left out, too.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &'static str> {
        let marks = match self.0 {
            Format::Tags { open, close } => vec![open, close],
            Format::Channels => channels::MARKS.to_vec(),
        };
        marks.into_iter()
    }

    /// Whether it writes calls and reasoning under headers of their own, so that a text with marks is no content of a message.
    pub(crate) fn has_channels(&self) -> bool {
        self.0 == Format::Channels
    }

    /// A splitter for what comes after a prompt that ends where an answer begins.
    pub fn splitter(&self) -> ReasoningSplitter {
        ReasoningSplitter(match self.0 {
            Format::Tags { open, close } => State::Tags(Tags::new(open, close)),
            Format::Channels => State::Channels(Channels::default()),
        })
    }

    /// A splitter for what comes after `prompt`, which may end within reasoning: some templates open it themselves.
    ///
    /// # Errors
    ///
    /// Those of [`Tokenizer::decode`].
    pub fn splitter_after(&self, tokenizer: &Tokenizer, prompt: &[TokenId]) -> Result<ReasoningSplitter> {
        Ok(ReasoningSplitter(match self.0 {
            Format::Tags { open, close } => State::Tags(Tags::after(open, close, tokenizer, prompt)?),
            Format::Channels => State::Channels(Channels::after(tokenizer, prompt)?),
        }))
    }
}

/// Splits an answer into its parts while it comes, wherever its pieces end.
///
/// Nothing is lost, and nothing said twice: the parts are the whole text without the marks. What may be the beginning of a mark is held
/// until it is known. A mark within an answer is a part of it.
///
/// ```
/// use mlxcel_session::{AnswerPart, ReasoningSplitter};
///
/// let mut splitter = ReasoningSplitter::tags("<think>", "</think>");
/// let parts: Vec<_> = ["<thi", "nk>Hm", "m.</", "think>Yes."].iter().flat_map(|piece| splitter.push(piece)).collect();
/// assert_eq!(parts.first(), Some(&AnswerPart::Reasoning("Hm".to_owned())));
/// assert_eq!(parts.last(), Some(&AnswerPart::Answer("Yes.".to_owned())));
/// assert_eq!(splitter.finish(), []);
/// ```
#[derive(Clone, Debug)]
pub struct ReasoningSplitter(State);

#[derive(Clone, Debug)]
enum State {
    /// No reasoning is known: all is the answer.
    Plain,
    Tags(Tags),
    Channels(Channels),
}

impl ReasoningSplitter {
    /// A splitter for reasoning between two tags of the application's choice, at the beginning of an answer.
    pub fn tags(open: impl Into<String>, close: impl Into<String>) -> Self {
        Self(State::Tags(Tags::new(open, close)))
    }

    /// A splitter for a model that has no reasoning: all is the answer.
    pub fn plain() -> Self {
        Self(State::Plain)
    }

    /// Adds a piece; gives the parts that are certain now.
    pub fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        if piece.is_empty() {
            return Vec::new();
        }
        match &mut self.0 {
            State::Plain => vec![AnswerPart::Answer(piece.to_owned())],
            State::Tags(tags) => tags.push(piece),
            State::Channels(channels) => channels.push(piece),
        }
    }

    /// Ends the answer; gives what was held.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        match &mut self.0 {
            State::Plain => Vec::new(),
            State::Tags(tags) => tags.finish(),
            State::Channels(channels) => channels.finish(),
        }
    }
}

/// A running generation as parts: [`TextStream::parts`](crate::TextStream::parts) and
/// [`RequestStream::parts`](crate::RequestStream::parts) make it. The stream tells what came, as ever.
#[derive(Debug)]
pub struct AnswerParts<S> {
    stream: S,
    splitter: ReasoningSplitter,
    ready: VecDeque<AnswerPart>,
    ended: bool,
}

impl<S> AnswerParts<S> {
    pub(crate) fn new(stream: S, splitter: ReasoningSplitter) -> Self {
        Self { stream, splitter, ready: VecDeque::new(), ended: false }
    }

    /// The generation.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: Iterator<Item = Result<String>>> Iterator for AnswerParts<S> {
    type Item = Result<AnswerPart>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.ended {
            match self.stream.next() {
                Some(Ok(piece)) => self.ready.extend(self.splitter.push(&piece)),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.ended = true;
                    self.ready.extend(self.splitter.finish());
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

/// How much of the end of `text` may be the beginning of `mark`, in bytes.
fn begun(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    let possible = (1..=most).rev().find(|&length| {
        text.is_char_boundary(text.len() - length) && mark.starts_with(&text[text.len() - length..])
    });
    possible.unwrap_or(0)
}
