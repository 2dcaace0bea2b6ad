//! The texts that mark the channels of gpt-oss, as OpenAI's Harmony format has them, and the recipients of
//! Functionary 3.2.

pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const START: &str = "<|start|>";
const CONSTRAIN: &str = "<|constrain|>";
/// What ends a message.
pub(crate) const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
/// All marks.
pub(crate) const ALL: [&str; 7] = [CHANNEL, MESSAGE, START, CONSTRAIN, ENDS[0], ENDS[1], ENDS[2]];

/// What the name of a recipient follows.
pub(crate) const RECIPIENT: &str = ">>>";
/// What the user reads is behind this and a line feed.
pub(crate) const TO_ALL: &str = ">>>all";
