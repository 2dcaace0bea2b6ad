//! The channels of gpt-oss: what follows a header is for the reader that the header names.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, as
//! OpenAI's Harmony format has it.

use mlxcel_core::{Result, TokenId};

use super::{begun, first_mark};
use crate::chat::AnswerPart;
use crate::chat::marks::{self, CHANNEL, ENDS, MESSAGE, START};
use crate::tokenizer::Tokenizer;

#[derive(Clone, Debug)]
pub(super) struct Channels {
    place: Place,
    /// What is not given yet.
    held: String,
    /// How much of a header was searched for its end.
    searched: usize,
    /// The tool that the last message was for.
    last_tool: Option<String>,
}

#[derive(Clone, Debug)]
enum Place {
    /// In a header; whether it is the first one, which plain text may replace.
    Header { first: bool },
    /// In a message for this reader.
    Message(Reader),
}

/// For whom a message is.
#[derive(Clone, Debug)]
enum Reader {
    /// The model itself.
    Reasoning,
    /// The user.
    Answer,
    /// A tool.
    Tool(String),
}

impl Default for Channels {
    fn default() -> Self {
        Self { place: Place::Header { first: true }, held: String::new(), searched: 0, last_tool: None }
    }
}

impl Channels {
    /// After `prompt`, which may end within a header, or within a message that continues.
    pub(super) fn after(tokenizer: &Tokenizer, prompt: &[TokenId]) -> Result<Self> {
        let mut channels = Self::default();
        let ids = marks::ALL.map(|mark| tokenizer.token_id(mark));
        let mark = |token: &TokenId| {
            marks::ALL.iter().zip(ids).find(|(_, id)| *id == Some(*token)).map(|(mark, _)| *mark)
        };
        let marks = || prompt.iter().enumerate().rev().filter_map(|(at, token)| Some((at, mark(token)?)));
        let Some((at, last)) = marks().next().filter(|(_, last)| !ENDS.contains(last)) else {
            return Ok(channels);
        };
        let start = marks().find(|(_, mark)| *mark == START).map_or(0, |(start, _)| start + 1).min(at);
        if last == MESSAGE {
            let header = tokenizer.decode(&prompt[start..at], false)?;
            channels.place = Place::Message(Reader::of(&header));
        } else {
            // The role is a part of the header that the prompt has.
            channels.held = tokenizer.decode(&prompt[start..], false)?;
            channels.place = Place::Header { first: !channels.held.contains(CHANNEL) };
            if channels.held.trim() == "assistant" {
                channels.held.clear();
            }
        }
        Ok(channels)
    }

    pub(super) fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        let mut held = std::mem::take(&mut self.held);
        held.push_str(piece);
        let (mut given, mut parts) = (0, Vec::new());
        loop {
            let rest = &held[given..];
            match &self.place {
                Place::Header { first } => {
                    if *first && !may_be_header(rest) {
                        (self.place, self.searched) = (Place::Message(Reader::Answer), 0);
                        continue;
                    }
                    let Some(at) = rest[self.searched..].find(MESSAGE).map(|at| at + self.searched) else {
                        self.searched = rest.len() - begun(rest, MESSAGE);
                        break;
                    };
                    let reader = Reader::of(&rest[..at]);
                    let tool = if let Reader::Tool(to) = &reader { Some(to.clone()) } else { None };
                    if tool.is_some() && tool == self.last_tool {
                        // Two calls of one tool are not one.
                        parts.push(reader.part(String::new()));
                    }
                    self.last_tool = tool;
                    (self.place, self.searched) = (Place::Message(reader), 0);
                    given += at + MESSAGE.len();
                }
                Place::Message(reader) => {
                    let end = first_mark(rest, ENDS.into_iter().chain([START]));
                    let (Ok((certain, _)) | Err(certain)) = end;
                    if certain > 0 {
                        parts.push(reader.part(rest[..certain].to_owned()));
                    }
                    given += certain;
                    let Ok((_, mark)) = end else { break };
                    given += mark.len();
                    self.place = Place::Header { first: false };
                }
            }
        }
        held.drain(..given);
        self.held = held;
        parts
    }

    pub(super) fn finish(&mut self) -> Vec<AnswerPart> {
        let held = std::mem::take(&mut self.held);
        match &self.place {
            _ if held.is_empty() => Vec::new(),
            Place::Message(reader) => vec![reader.part(held)],
            // A header without a message says nothing, and a text without marks is none.
            Place::Header { .. } if marks::ALL.iter().any(|mark| held.contains(mark)) => Vec::new(),
            Place::Header { .. } => vec![AnswerPart::Answer(held)],
        }
    }
}

/// Whether `text` is the beginning of a header, or may become one.
fn may_be_header(text: &str) -> bool {
    let text = text.trim_start();
    [CHANNEL, START, "to=", "assistant"]
        .iter()
        .any(|begin| text.starts_with(begin) || begin.starts_with(text))
}

impl Reader {
    fn of(header: &str) -> Self {
        if let Some((_, to)) = header.split_once("to=") {
            let end = to.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(to.len());
            return Self::Tool(to[..end].to_owned());
        }
        let channel = header.split_once(CHANNEL).map_or("", |(_, channel)| channel.trim_start());
        if channel.starts_with("analysis") { Self::Reasoning } else { Self::Answer }
    }

    fn part(&self, text: String) -> AnswerPart {
        match self {
            Self::Reasoning => AnswerPart::Reasoning(text),
            Self::Answer => AnswerPart::Answer(text),
            Self::Tool(to) => AnswerPart::Call { to: to.clone(), text },
        }
    }
}
