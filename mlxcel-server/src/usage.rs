//! What answers took, in the words of the APIs.

use mlxcel_session::Usage;
use serde::Serialize;

/// What one answer took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerUsage {
    pub(crate) usage: Usage,
    /// How many of its tokens are reasoning; `None` for a text whose parts are not separated.
    pub(crate) reasoning_tokens: Option<usize>,
}

/// The usage of OpenAI's API.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ApiUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl ApiUsage {
    /// Of one prompt and all its answers.
    pub(crate) fn of(answers: &[AnswerUsage]) -> Self {
        let prompt_tokens = answers.first().map_or(0, |answer| answer.usage.prompt_tokens);
        let cached_tokens = answers.first().map_or(0, |answer| answer.usage.reused_tokens);
        let completion_tokens = answers.iter().map(|answer| answer.usage.generated_tokens).sum();
        let reasoning_tokens = answers.iter().map(|answer| answer.reasoning_tokens).sum::<Option<usize>>();
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens },
            completion_tokens_details: reasoning_tokens
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }

    /// Of prompts with so many tokens, and no answers.
    pub(crate) fn of_prompts(prompt_tokens: usize) -> Self {
        Self { prompt_tokens, total_tokens: prompt_tokens, ..Self::default() }
    }

    /// Of several prompts whose texts are continued.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            completion_tokens: self.completion_tokens + other.completion_tokens,
            total_tokens: self.total_tokens + other.total_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: self.prompt_tokens_details.cached_tokens
                    + other.prompt_tokens_details.cached_tokens,
            },
            completion_tokens_details: None,
        }
    }
}
