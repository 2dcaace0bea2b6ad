//! Calls that are a bare name and the arguments as a JSON object.

use crate::chat::marks::{RECIPIENT, TO_ALL};
use crate::chat::style::{Call, Id, Style};

pub(super) const GPT_OSS: Style = Style {
    marks: &["<|channel|>", "<|constrain|>", "<|message|>"],
    parallel: false,
    ..Style::new(
        "gpt-oss",
        &["<|channel|>", "<|message|>"],
        Call::Channel {
            before: "<|channel|>commentary to=functions.",
            between: " <|constrain|>json<|message|>",
        },
    )
};

pub(super) const DEEPSEEK_V3: Style = Style {
    shows_tools: false,
    separator: "\n",
    ..deepseek(
        "deepseek-v3",
        &["<｜tool▁calls▁begin｜>", "```json"],
        Call::Named {
            before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            id: Id::None,
            between: "\n```json\n",
            after: "\n```<｜tool▁call▁end｜>",
        },
    )
};

pub(super) const DEEPSEEK_V3_1: Style = deepseek(
    "deepseek-v3.1",
    &["<｜tool▁calls▁begin｜>"],
    Call::Named {
        before: "<｜tool▁call▁begin｜>",
        id: Id::None,
        between: "<｜tool▁sep｜>",
        after: "<｜tool▁call▁end｜>",
    },
);

/// Mistral Small 3.2, Devstral, Magistral.
pub(super) const MISTRAL_ARGUMENTS: Style = Style {
    marks: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    ..Style::new(
        "mistral-arguments",
        &["[TOOL_CALLS]", "[ARGS]"],
        Call::Named { before: "[TOOL_CALLS]", id: Id::May("[CALL_ID]"), between: "[ARGS]", after: "" },
    )
};

/// Kimi K2 and Linear.
pub(super) const KIMI: Style = Style {
    marks: &[
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ],
    open: "<|tool_calls_section_begin|>",
    close: "<|tool_calls_section_end|>",
    ..Style::new(
        "kimi",
        &["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"],
        Call::Named {
            before: "<|tool_call_begin|>functions.",
            id: Id::Number,
            between: "<|tool_call_argument_begin|>",
            after: "<|tool_call_end|>",
        },
    )
};

/// Functionary 3.2, which names a recipient of each part of an answer: a tool, or `all` for the user.
pub(super) const FUNCTIONARY_V3_2: Style = Style {
    prompted: RECIPIENT,
    text_arguments: true,
    ..Style::new(
        "functionary-v3.2",
        &[TO_ALL],
        Call::Named { before: RECIPIENT, id: Id::None, between: "\n", after: "" },
    )
};

/// Functionary 3.1.
pub(super) const FUNCTIONARY: Style = Style::new(
    "functionary",
    &["<|start_header_id|>", "<function="],
    Call::Named { before: "<function=", id: Id::None, between: ">", after: "</function>" },
);

const fn deepseek(name: &'static str, spelled: &'static [&'static str], call: Call) -> Style {
    Style {
        marks: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        open: "<｜tool▁calls▁begin｜>",
        close: "<｜tool▁calls▁end｜>",
        ..Style::new(name, spelled, call)
    }
}
