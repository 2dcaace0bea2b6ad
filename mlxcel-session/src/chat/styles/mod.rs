//! The call formats of published models, one [`Style`] each, from which grammar and parser are built.
//!
//! For a new family, add its style to the file of its kind of calls, and its name to [`STYLES`].

mod keywords;
mod named;
mod objects;
mod tagged;

use super::ChatTemplate;
use super::style::Style;

/// In the order in which they are looked for: the first one of which a chat template spells out all texts. The
/// last one is for every other model.
pub(crate) const STYLES: [&Style; 32] = [
    &named::GPT_OSS,
    &named::DEEPSEEK_V3,
    &named::DEEPSEEK_V3_1,
    &tagged::DEEPSEEK_V3_2,
    &tagged::DEEPSEEK_V4,
    &named::MISTRAL_ARGUMENTS,
    &objects::MISTRAL,
    &objects::GRANITE,
    &keywords::GEMMA4,
    &keywords::FUNCTIONGEMMA,
    &keywords::LFM2,
    &keywords::OLMO3,
    &keywords::PYTHONIC,
    &named::KIMI,
    &objects::COMMAND,
    &objects::NEMOTRON,
    &objects::TOOL_CALLS,
    &tagged::MINICPM,
    &objects::LONGCAT,
    &tagged::MINIMAX_M3,
    &tagged::MINIMAX,
    &tagged::SEED,
    &tagged::QWEN_CODER,
    &tagged::GLM,
    &objects::HERMES,
    &named::FUNCTIONARY_V3_2,
    &named::FUNCTIONARY,
    &objects::FIREFUNCTION,
    &objects::LLAMA4,
    &objects::LLAMA3,
    &objects::GEMMA,
    &objects::GENERIC,
];

impl Style {
    /// How calls are written by a model whose chat template `spells` these texts out.
    pub(super) fn find(spells: impl Fn(&str) -> bool) -> &'static Self {
        let found = STYLES.into_iter().find(|style| style.spelled.iter().all(|text| spells(text)));
        found.unwrap_or(&objects::GENERIC)
    }

    /// How calls are written by a model with this chat template.
    pub(crate) fn of(template: Option<&ChatTemplate>) -> &'static Self {
        template.map_or(&objects::GENERIC, ChatTemplate::style)
    }
}
