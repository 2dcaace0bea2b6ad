//! Calls with the arguments as keywords, each with a literal.

use crate::chat::style::{Call, Literals, Style};

pub(super) const GEMMA4: Style = Style {
    marks: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
    ..Style::new(
        "gemma4",
        &["<|tool_call>", "<tool_call|>"],
        Call::Keywords {
            before: "<|tool_call>call:",
            open: "{",
            assign: ":",
            literals: Literals::Marked("<|\"|>"),
            after: "}<tool_call|>",
        },
    )
};

pub(super) const FUNCTIONGEMMA: Style = Style {
    marks: &["<start_function_call>", "<end_function_call>", "<escape>"],
    ..Style::new(
        "functiongemma",
        &["<start_function_call>", "<escape>"],
        Call::Keywords {
            before: "<start_function_call>call:",
            open: "{",
            assign: ":",
            literals: Literals::Marked("<escape>"),
            after: "}<end_function_call>",
        },
    )
};

/// LFM2 and LFM2.5; not all of their templates spell out the marks.
pub(super) const LFM2: Style = Style {
    marks: &["<|tool_call_start|>", "<|tool_call_end|>"],
    ..Style::list(
        "lfm2",
        &["<|im_start|>", "List of tools: "],
        "<|tool_call_start|>[",
        PYTHON,
        "]<|tool_call_end|>",
    )
};

/// Olmo 3.
pub(super) const OLMO3: Style = Style {
    marks: &["<function_calls>", "</function_calls>"],
    open: "<function_calls>",
    separator: "\n",
    close: "</function_calls>",
    ..Style::new("olmo3", &["<function_calls>", "<functions>"], PYTHON)
};

/// Llama 4, ToolACE and others with a template that asks for it: the calls are the whole answer.
pub(super) const PYTHONIC: Style = Style::list("pythonic", &["func_name1(param"], "[", PYTHON, "]");

/// As Python writes a call with keywords.
const PYTHON: Call =
    Call::Keywords { before: "", open: "(", assign: "=", literals: Literals::Python, after: ")" };
