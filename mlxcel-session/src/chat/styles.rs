//! The call formats of published models, one entry each, from which grammar and parser are built.

use super::ChatTemplate;

/// How a family writes calls: `open`, the calls with `separator` between them, `close`.
#[derive(Debug)]
pub(crate) struct Style {
    pub(crate) name: &'static str,
    /// What its chat templates spell out, all of it.
    pub(crate) spelled: &'static [&'static str],
    /// Whether a template of this style shows the tools to the model by itself.
    pub(crate) shows_tools: bool,
    /// What is written as a token of its own, where the vocabulary has that.
    pub(crate) marks: &'static [&'static str],
    pub(crate) open: &'static str,
    pub(crate) call: Call,
    pub(crate) separator: &'static str,
    pub(crate) close: &'static str,
    /// Whether one answer has several calls.
    #[cfg_attr(not(feature = "structured"), allow(dead_code, reason = "grammars alone need it"))]
    pub(crate) parallel: bool,
}

/// How one call is written. Space around the texts is written as it stands, and read in any amount.
#[derive(Debug)]
pub(crate) enum Call {
    /// `before`, a JSON object with the name and the arguments in fields, `after`.
    Object { before: &'static str, name: &'static str, arguments: &'static str, after: &'static str },
    /// `before`, the bare name, `between`, the arguments as a JSON object, `after`.
    Named { before: &'static str, between: &'static str, after: &'static str },
    /// As `Named`, in the channels of gpt-oss, which are read with the reasoning.
    Channel { before: &'static str, between: &'static str },
}

/// In the order in which they are looked for; the last one is for every other model.
pub(crate) const STYLES: [Style; 10] = [
    Style {
        name: "gpt-oss",
        spelled: &["<|channel|>", "<|message|>"],
        shows_tools: true,
        marks: &["<|channel|>", "<|constrain|>", "<|message|>"],
        open: "",
        call: Call::Channel {
            before: "<|channel|>commentary to=functions.",
            between: " <|constrain|>json<|message|>",
        },
        separator: "",
        close: "",
        parallel: false,
    },
    Style {
        name: "deepseek-v3",
        spelled: &["<｜tool▁calls▁begin｜>", "```json"],
        shows_tools: false,
        marks: &DEEPSEEK,
        open: "<｜tool▁calls▁begin｜>",
        call: Call::Named {
            before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            between: "\n```json\n",
            after: "\n```<｜tool▁call▁end｜>",
        },
        separator: "\n",
        close: "<｜tool▁calls▁end｜>",
        parallel: true,
    },
    Style {
        name: "deepseek-v3.1",
        spelled: &["<｜tool▁calls▁begin｜>"],
        shows_tools: true,
        marks: &DEEPSEEK,
        open: "<｜tool▁calls▁begin｜>",
        call: Call::Named {
            before: "<｜tool▁call▁begin｜>",
            between: "<｜tool▁sep｜>",
            after: "<｜tool▁call▁end｜>",
        },
        separator: "",
        close: "<｜tool▁calls▁end｜>",
        parallel: true,
    },
    // Mistral Small 3.2, Devstral, Magistral
    Style {
        name: "mistral-arguments",
        spelled: &["[TOOL_CALLS]", "[ARGS]"],
        shows_tools: true,
        marks: &["[TOOL_CALLS]", "[ARGS]"],
        open: "",
        call: Call::Named { before: "[TOOL_CALLS]", between: "[ARGS]", after: "" },
        separator: "",
        close: "",
        parallel: true,
    },
    // Mistral 7B 0.3, Nemo, Large, Ministral
    Style {
        name: "mistral",
        spelled: &["[TOOL_CALLS]"],
        shows_tools: true,
        marks: &["[TOOL_CALLS]"],
        open: "[TOOL_CALLS][",
        call: Call::Object { before: "", name: "name", arguments: "arguments", after: "" },
        separator: ", ",
        close: "]",
        parallel: true,
    },
    // Granite 3
    Style {
        name: "granite",
        spelled: &["<|tool_call|>"],
        shows_tools: true,
        marks: &["<|tool_call|>"],
        open: "<|tool_call|>[",
        call: Call::Object { before: "", name: "name", arguments: "arguments", after: "" },
        separator: ", ",
        close: "]",
        parallel: true,
    },
    // Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4
    Style {
        name: "hermes",
        spelled: &["<tool_call>"],
        shows_tools: true,
        marks: &HERMES_MARKS,
        open: "",
        call: HERMES_CALL,
        separator: "\n",
        close: "",
        parallel: true,
    },
    // Llama 3.1, 3.2 and 3.3: the call is the whole answer
    Style {
        name: "llama3",
        spelled: &["<|start_header_id|>", "tools"],
        shows_tools: true,
        marks: &[],
        open: "",
        call: Call::Object { before: "", name: "name", arguments: "parameters", after: "" },
        separator: "",
        close: "",
        parallel: false,
    },
    Style {
        name: "gemma",
        spelled: &["<start_of_turn>"],
        shows_tools: false,
        marks: &[],
        open: "",
        call: Call::Object {
            before: "```tool_call\n",
            name: "name",
            arguments: "parameters",
            after: "\n```",
        },
        separator: "\n",
        close: "",
        parallel: true,
    },
    Style {
        name: "generic",
        spelled: &[],
        shows_tools: false,
        marks: &HERMES_MARKS,
        open: "",
        call: HERMES_CALL,
        separator: "\n",
        close: "",
        parallel: true,
    },
];

const HERMES_MARKS: [&str; 2] = ["<tool_call>", "</tool_call>"];

/// As Hermes writes a call, and models that were told how in a system message.
const HERMES_CALL: Call =
    Call::Object { before: "<tool_call>\n", name: "name", arguments: "arguments", after: "\n</tool_call>" };

const DEEPSEEK: [&str; 5] = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

impl Style {
    /// How calls are written by a model with this chat template.
    pub(crate) fn of(template: Option<&ChatTemplate>) -> &'static Self {
        let spells = |text: &str| template.is_some_and(|template| template.spells(text));
        let found = STYLES.iter().find(|style| style.spelled.iter().all(|text| spells(text)));
        found.unwrap_or(&STYLES[STYLES.len() - 1])
    }

    /// The texts that a model with this chat template marks calls with: shown where other special tokens are
    /// left out.
    pub(crate) fn marks_of(template: Option<&ChatTemplate>) -> &'static [&'static str] {
        template.map_or(&[], |template| Self::of(Some(template)).marks)
    }

    /// What a text begins to be a call with; nothing where the call is the whole answer.
    pub(crate) fn trigger(&self) -> &'static str {
        let before = match self.call {
            Call::Object { before, .. } | Call::Named { before, .. } | Call::Channel { before, .. } => before,
        };
        let begin = if self.open.is_empty() { before } else { self.open }.trim();
        self.marks.iter().find(|mark| begin.starts_with(**mark)).copied().unwrap_or(begin)
    }
}
