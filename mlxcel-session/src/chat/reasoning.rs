//! How models mark their reasoning.

use super::{ChatTemplate, marks};

/// Tags around reasoning that models are trained on.
const TAGS: [(&str, &str); 13] = [
    // DeepSeek R1, Qwen 3, SmolLM3, GLM, Granite 3.3
    ("<think>", "</think>"),
    // Magistral
    ("[THINK]", "[/THINK]"),
    // Seed
    ("<seed:think>", "</seed:think>"),
    // MiniMax M3
    ("<mm:think>", "</mm:think>"),
    // Command A
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    // Apriel
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    // Phi 4 reasoning, with its own template
    ("<thinking>", "</thinking>"),
    // Granite 3.2
    ("Here is my thought process:", "Here is my response:"),
    // Gemma 4, with the name of the channel
    ("<|channel>thought\n", "<channel|>"),
    // LongCat
    ("<longcat_think>", "</longcat_think>"),
    // Kimi VL
    ("◁think▷", "◁/think▷"),
    // Apertus
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    // EXAONE Deep
    ("<thought>", "</thought>"),
];

/// How a model marks its reasoning: tags at the beginning of an answer (`<think>…</think>`), or the channels
/// of gpt-oss. Functionary 3.2 has none, but marks the beginning of its answers.
/// [`Tokenizer::reasoning`](crate::Tokenizer::reasoning) returns the format of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningFormat(pub(crate) ReasoningMarks);

/// The marks of a [`ReasoningFormat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReasoningMarks {
    Tags {
        open: &'static str,
        close: &'static str,
    },
    Channels,
    /// None, but answers begin with whom they are for (Functionary 3.2).
    Recipients,
}

/// The token that a tag begins with: all of it but the name of a channel.
fn token_of(open: &str) -> &str {
    open.strip_suffix("thought\n").unwrap_or(open)
}

impl ReasoningFormat {
    /// The format whose marks the template spells out, or the vocabulary has.
    pub(crate) fn find(
        template: Option<&ChatTemplate>,
        has_token: impl Fn(&str) -> bool,
    ) -> Option<ReasoningFormat> {
        let spells = |mark: &str| template.is_some_and(|template| template.spells(mark));
        if [marks::CHANNEL, marks::MESSAGE].into_iter().all(spells) {
            return Some(Self(ReasoningMarks::Channels));
        }
        if spells(marks::TO_ALL) {
            return Some(Self(ReasoningMarks::Recipients));
        }
        let tags = |known: &dyn Fn(&str) -> bool| {
            let found = TAGS.into_iter().find(|(open, close)| known(token_of(open)) && known(close));
            found.map(|(open, close)| Self(ReasoningMarks::Tags { open, close }))
        };
        tags(&spells).or_else(|| tags(&has_token))
    }

    /// The texts that mark parts. They are shown where special tokens are left out, too.
    pub(crate) fn marks(&self) -> Vec<&'static str> {
        match self.0 {
            ReasoningMarks::Tags { open, close } => vec![token_of(open), close],
            ReasoningMarks::Channels => marks::ALL.to_vec(),
            ReasoningMarks::Recipients => Vec::new(),
        }
    }

    /// Whether it writes calls and reasoning under separate headers, so that message content has no markers.
    pub(crate) fn has_channels(&self) -> bool {
        matches!(self.0, ReasoningMarks::Channels | ReasoningMarks::Recipients)
    }
}
