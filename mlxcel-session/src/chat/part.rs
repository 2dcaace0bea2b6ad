//! The parts of a model's output.

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
        /// What it hands over: JSON, as a rule. An empty text begins another call of the same reader.
        text: String,
    },
}
