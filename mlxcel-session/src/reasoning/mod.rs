//! Splits reasoning from the answer while it streams.

mod channels;
mod recipients;
mod tags;

use std::collections::VecDeque;

use mlxcel_core::{Result, TokenId};

use crate::chat::{AnswerPart, ReasoningFormat, ReasoningMarks};
use crate::tokenizer::Tokenizer;
use channels::Channels;
use recipients::Recipients;
use tags::Tags;

impl ReasoningFormat {
    /// A splitter for output after a prompt that ends at the beginning of an answer.
    pub fn splitter(&self) -> ReasoningSplitter {
        ReasoningSplitter(match self.0 {
            ReasoningMarks::Tags { open, close } => State::Tags(Tags::new(open, close)),
            ReasoningMarks::Channels => State::Channels(Channels::default()),
            ReasoningMarks::Recipients => State::Recipients(Recipients::default()),
        })
    }

    /// A splitter for output after `prompt`, which may end inside reasoning: some templates open the tag
    /// themselves.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`].
    pub fn splitter_after(&self, tokenizer: &Tokenizer, prompt: &[TokenId]) -> Result<ReasoningSplitter> {
        Ok(ReasoningSplitter(match self.0 {
            ReasoningMarks::Tags { open, close } => State::Tags(Tags::after(open, close, tokenizer, prompt)?),
            ReasoningMarks::Channels => State::Channels(Channels::after(tokenizer, prompt)?),
            ReasoningMarks::Recipients => State::Recipients(Recipients::after(tokenizer, prompt)?),
        }))
    }
}

/// Splits streamed output into reasoning and answer, wherever the pieces end.
///
/// The parts concatenate to the whole text without the markers. Text that may be the beginning of a marker is
/// held back until it is decided. A marker inside an answer is part of the answer.
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
    Recipients(Recipients),
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

    /// Whether all output is the answer.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.0, State::Plain)
    }

    /// Whether output begins inside reasoning between tags.
    #[cfg(feature = "structured")]
    pub(crate) fn is_in_tags(&self) -> bool {
        matches!(&self.0, State::Tags(tags) if tags.is_in_reasoning())
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
            State::Recipients(recipients) => recipients.push(piece),
        }
    }

    /// Ends the output and returns the withheld text.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        match &mut self.0 {
            State::Plain | State::Recipients(_) => Vec::new(),
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
    pub(crate) stream: S,
    splitter: ReasoningSplitter,
    pub(crate) ready: VecDeque<AnswerPart>,
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
    pub(crate) fn wants_piece(&self) -> bool {
        self.ready.is_empty() && !self.ended
    }

    /// Splits the next piece of the stream, or its end.
    pub(crate) fn push(&mut self, piece: Option<Result<String>>) -> Result<()> {
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

/// Where the first of `marks` in `text` begins, and which it is. Without one, the error says how many bytes are in
/// front of what may be the beginning of one. Each byte is looked at once, wherever the marks are.
pub(crate) fn first_mark<'m>(
    text: &str,
    marks: impl Iterator<Item = &'m str> + Clone,
) -> Result<(usize, &'m str), usize> {
    let mark_at = |at: usize| marks.clone().find(|mark| text[at..].starts_with(mark));
    let found = text.char_indices().find_map(|(at, _)| Some((at, mark_at(at)?)));
    found.ok_or_else(|| text.len() - marks.clone().map(|mark| begun(text, mark)).max().unwrap_or(0))
}

/// How much of the end of `text` may be the beginning of `mark`, in bytes.
pub(crate) fn begun(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    let possible = (1..=most).rev().find(|&length| {
        text.is_char_boundary(text.len() - length) && mark.starts_with(&text[text.len() - length..])
    });
    possible.unwrap_or(0)
}
