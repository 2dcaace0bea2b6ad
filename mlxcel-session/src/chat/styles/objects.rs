//! Calls that are a JSON object with the name and the arguments in fields.

use crate::chat::style::{Call, Style};

/// Mistral 7B 0.3, Nemo, Large, Ministral.
pub(super) const MISTRAL: Style = Style {
    marks: &["[TOOL_CALLS]"],
    open: "[TOOL_CALLS][",
    separator: ", ",
    close: "]",
    ..Style::new("mistral", &["[TOOL_CALLS]"], ITEM)
};

/// Granite 3.
pub(super) const GRANITE: Style = Style {
    marks: &["<|tool_call|>"],
    open: "<|tool_call|>[",
    separator: ", ",
    close: "]",
    ..Style::new("granite", &["<|tool_call|>"], ITEM)
};

/// Command R7B and A.
pub(super) const COMMAND: Style = Style {
    marks: &["<|START_ACTION|>", "<|END_ACTION|>"],
    open: "<|START_ACTION|>[",
    separator: ", ",
    close: "]<|END_ACTION|>",
    ..Style::new(
        "command",
        &["<|START_ACTION|>"],
        Call::Object { before: "", name: "tool_name", arguments: "parameters", after: "" },
    )
};

/// Nemotron Nano 2 and Super 1.5.
pub(super) const NEMOTRON: Style = Style {
    marks: &["<TOOLCALL>", "</TOOLCALL>"],
    open: "<TOOLCALL>[",
    separator: ", ",
    close: "]</TOOLCALL>",
    ..Style::new("nemotron", &["<TOOLCALL>"], ITEM)
};

/// Apriel, Hunyuan A13B.
pub(super) const TOOL_CALLS: Style = Style {
    marks: &["<tool_calls>", "</tool_calls>"],
    open: "<tool_calls>[",
    separator: ", ",
    close: "]</tool_calls>",
    ..Style::new("tool-calls", &["<tool_calls>["], ITEM)
};

pub(super) const LONGCAT: Style = Style {
    marks: &["<longcat_tool_call>", "</longcat_tool_call>"],
    separator: "\n",
    ..Style::new(
        "longcat",
        &["<longcat_tool_call>"],
        Call::Object {
            before: "<longcat_tool_call>\n",
            name: "name",
            arguments: "arguments",
            after: "\n</longcat_tool_call>",
        },
    )
};

/// Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4.
pub(super) const HERMES: Style = Style {
    marks: &["<tool_call>", "</tool_call>"],
    separator: "\n",
    ..Style::new(
        "hermes",
        &["<tool_call>"],
        Call::Object {
            before: "<tool_call>\n",
            name: "name",
            arguments: "arguments",
            after: "\n</tool_call>",
        },
    )
};

/// Firefunction 2, whose template prints functions of another variable.
pub(super) const FIREFUNCTION: Style = Style {
    shows_tools: false,
    open: "functools[",
    separator: ", ",
    close: "]",
    ..Style::new("firefunction", &["functools["], ITEM)
};

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
const ITEM: Call = Call::Object { before: "", name: "name", arguments: "arguments", after: "" };
