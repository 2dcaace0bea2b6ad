//! Splits reasoning from the answer while it streams.

mod channels;
mod tags;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use mlxcel_core::{Result, TokenId};

use super::ChatTemplate;
use crate::engine::AsyncRequestStream;
use crate::tokenizer::Tokenizer;
use channels::Channels;
use tags::Tags;

/// A part of a model's output. Consecutive parts of one kind form one text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerPart {
    /// Reasoning before the answer.
    Reasoning(String),
    /// The answer.
    Answer(String),
    /// A tool call in a channel of its own (gpt-oss). Tool calls written into the answer are part of
    /// [`Answer`](Self::Answer).
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

/// How a model marks its reasoning: tags at the beginning of an answer (`<think>…</think>`), or the channels of
/// gpt-oss. [`Tokenizer::reasoning`] returns the format of a checkpoint.
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

    /// Whether it writes calls and reasoning under separate headers, so that message content has no markers.
    pub(crate) fn has_channels(&self) -> bool {
        self.0 == Format::Channels
    }

    /// A splitter for output after a prompt that ends at the beginning of an answer.
    pub fn splitter(&self) -> ReasoningSplitter {
        ReasoningSplitter(match self.0 {
            Format::Tags { open, close } => State::Tags(Tags::new(open, close)),
            Format::Channels => State::Channels(Channels::default()),
        })
    }

    /// A splitter for output after `prompt`, which may end inside reasoning: some templates open the tag themselves.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`].
    pub fn splitter_after(&self, tokenizer: &Tokenizer, prompt: &[TokenId]) -> Result<ReasoningSplitter> {
        Ok(ReasoningSplitter(match self.0 {
            Format::Tags { open, close } => State::Tags(Tags::after(open, close, tokenizer, prompt)?),
            Format::Channels => State::Channels(Channels::after(tokenizer, prompt)?),
        }))
    }
}

/// Splits streamed output into reasoning and answer, wherever the pieces end.
///
/// The parts concatenate to the whole text without the markers. Text that may be the beginning of a marker is held back
/// until it is decided. A marker inside an answer is part of the answer.
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
    /// No reasoning: all output is the answer.
    Plain,
    Tags(Tags),
    Channels(Channels),
}

impl ReasoningSplitter {
    /// A splitter for reasoning between two custom tags at the beginning of an answer.
    pub fn tags(open: impl Into<String>, close: impl Into<String>) -> Self {
        Self(State::Tags(Tags::new(open, close)))
    }

    /// A splitter for a model without reasoning: all output is the answer.
    pub fn plain() -> Self {
        Self(State::Plain)
    }

    /// Adds a piece and returns the parts that are decided.
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

    /// Ends the output and returns the withheld text.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        match &mut self.0 {
            State::Plain => Vec::new(),
            State::Tags(tags) => tags.finish(),
            State::Channels(channels) => channels.finish(),
        }
    }
}

/// A running generation as parts, created by [`TextStream::parts`](crate::TextStream::parts),
/// [`RequestStream::parts`](crate::RequestStream::parts) and
/// [`AsyncRequestStream::parts`](crate::AsyncRequestStream::parts).
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

    /// The underlying stream, for tokens, usage and finish reason.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether the next part depends on the next piece.
    fn wants_piece(&self) -> bool {
        self.ready.is_empty() && !self.ended
    }

    /// Splits the next piece of the stream, or its end.
    fn push(&mut self, piece: Option<Result<String>>) -> Result<()> {
        match piece.transpose()? {
            Some(piece) => self.ready.extend(self.splitter.push(&piece)),
            None => {
                self.ended = true;
                self.ready.extend(self.splitter.finish());
            }
        }
        Ok(())
    }
}

impl<S: Iterator<Item = Result<String>>> Iterator for AnswerParts<S> {
    type Item = Result<AnswerPart>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.wants_piece() {
            let piece = self.stream.next();
            if let Err(error) = self.push(piece) {
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl AnswerParts<AsyncRequestStream> {
    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<AnswerPart>> {
        poll_fn(|context| self.poll_part(context)).await
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AnswerPart>>> {
        while self.wants_piece() {
            let piece = ready!(self.stream.poll_piece(context));
            if let Err(error) = self.push(piece) {
                return Poll::Ready(Some(Err(error)));
            }
        }
        Poll::Ready(self.ready.pop_front().map(Ok))
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for AnswerParts<AsyncRequestStream> {
    type Item = Result<AnswerPart>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_part(context)
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
