//! The texts that mark the channels of gpt-oss, as OpenAI's Harmony format has them.

pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const START: &str = "<|start|>";
const CONSTRAIN: &str = "<|constrain|>";
/// What ends a message.
pub(crate) const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
/// All marks.
pub(crate) const ALL: [&str; 7] = [CHANNEL, MESSAGE, START, CONSTRAIN, ENDS[0], ENDS[1], ENDS[2]];
