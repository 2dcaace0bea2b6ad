//! Calls that are a JSON object with the name and the arguments in fields.

use crate::chat::style::{Call, Style};

/// Mistral 7B 0.3, Nemo, Large, Ministral.
pub(super) const MISTRAL: Style = Style {
    marks: &["[TOOL_CALLS]"],
    ..Style::list("mistral", &["[TOOL_CALLS]"], "[TOOL_CALLS][", ITEM, "]")
};

/// Granite 3.
pub(super) const GRANITE: Style = Style {
    marks: &["<|tool_call|>"],
    ..Style::list("granite", &["<|tool_call|>"], "<|tool_call|>[", ITEM, "]")
};

/// Command R7B and A.
pub(super) const COMMAND: Style = Style {
    marks: &["<|START_ACTION|>", "<|END_ACTION|>"],
    ..Style::list(
        "command",
        &["<|START_ACTION|>"],
        "<|START_ACTION|>[",
        Call::Object { before: "", name: "tool_name", arguments: "parameters", after: "" },
        "]<|END_ACTION|>",
    )
};

/// Nemotron Nano 2 and Super 1.5.
pub(super) const NEMOTRON: Style = Style {
    marks: &["<TOOLCALL>", "</TOOLCALL>"],
    ..Style::list("nemotron", &["<TOOLCALL>"], "<TOOLCALL>[", ITEM, "]</TOOLCALL>")
};

/// Apriel, Hunyuan A13B.
pub(super) const TOOL_CALLS: Style = Style {
    marks: &["<tool_calls>", "</tool_calls>"],
    ..Style::list("tool-calls", &["<tool_calls>["], "<tool_calls>[", ITEM, "]</tool_calls>")
};

pub(super) const LONGCAT: Style = Style {
    marks: &["<longcat_tool_call>", "</longcat_tool_call>"],
    separator: "\n",
    ..Style::new(
        "longcat",
        &["<longcat_tool_call>"],
        object("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    )
};

/// Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4.
pub(super) const HERMES: Style = Style {
    marks: &["<tool_call>", "</tool_call>"],
    separator: "\n",
    ..Style::new("hermes", &["<tool_call>"], object("<tool_call>\n", "\n</tool_call>"))
};

/// Firefunction 2, whose template prints functions of another variable.
pub(super) const FIREFUNCTION: Style =
    Style { shows_tools: false, ..Style::list("firefunction", &["functools["], "functools[", ITEM, "]") };

/// Llama 4 with a template that asks for JSON: the calls are the whole answer.
pub(super) const LLAMA4: Style = Style {
    name: "llama4",
    spelled: &["<|header_start|>", "dictionary of argument name"],
    parallel: true,
    ..LLAMA3
};

/// Llama 3.1, 3.2 and 3.3: the calls are the whole answer. The templates ask for one, but models write several.
pub(super) const LLAMA3: Style = Style {
    separator: "; ",
    parallel: false,
    ..Style::new(
        "llama3",
        &["<|start_header_id|>", "tools"],
        Call::Object { before: "", name: "name", arguments: "parameters", after: "" },
    )
};

/// Gemma 2 and 3, whose templates have no tools.
pub(super) const GEMMA: Style = Style {
    shows_tools: false,
    separator: "\n",
    ..Style::new(
        "gemma",
        &["<start_of_turn>"],
        Call::Object { before: "```tool_call\n", name: "name", arguments: "parameters", after: "\n```" },
    )
};

/// Models of no other style, which are told in a system message to write calls as Hermes does.
pub(super) const GENERIC: Style = Style { name: "generic", spelled: &[], shows_tools: false, ..HERMES };

/// One of a list.
const ITEM: Call = object("", "");

const fn object(before: &'static str, after: &'static str) -> Call {
    Call::Object { before, name: "name", arguments: "arguments", after }
}
