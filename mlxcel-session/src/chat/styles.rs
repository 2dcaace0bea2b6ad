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
    /// `before`, the bare name, its id, `between`, the arguments as a JSON object, `after`.
    Named { before: &'static str, id: Id, between: &'static str, after: &'static str },
    /// As `Named`, in the channels of gpt-oss, which are read with the reasoning.
    Channel { before: &'static str, between: &'static str },
    /// `before`, the bare name, `between`, the arguments, each between tags, `after`.
    Tagged { before: &'static str, between: &'static str, argument: Argument, after: &'static str },
}

/// The id that a family writes behind the name of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    None,
    /// Letters and digits behind this text, or nothing.
    May(&'static str),
    /// The number of the call in the conversation, behind `:`; with the name and `functions.` it is the id that
    /// templates render.
    Number,
}

/// How an argument is written between tags: `open`, its name, `named`, `middle`, its value, `close`. A string is
/// written as it is, any other value as JSON. Line feeds around the value that `middle` and `close` have are not
/// part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument {
    pub(crate) open: &'static str,
    pub(crate) named: &'static str,
    pub(crate) middle: &'static str,
    pub(crate) close: &'static str,
}

impl Call {
    /// What a call begins with.
    pub(crate) fn before(&self) -> &'static str {
        match self {
            Self::Object { before, .. }
            | Self::Named { before, .. }
            | Self::Channel { before, .. }
            | Self::Tagged { before, .. } => before,
        }
    }
}

/// In the order in which they are looked for; the last one is for every other model.
pub(crate) const STYLES: [Style; 20] = [
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
            id: Id::None,
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
            id: Id::None,
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
        marks: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        open: "",
        call: Call::Named { before: "[TOOL_CALLS]", id: Id::May("[CALL_ID]"), between: "[ARGS]", after: "" },
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
    // Kimi K2 and Linear
    Style {
        name: "kimi",
        spelled: &["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"],
        shows_tools: true,
        marks: &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
        open: "<|tool_calls_section_begin|>",
        call: Call::Named {
            before: "<|tool_call_begin|>functions.",
            id: Id::Number,
            between: "<|tool_call_argument_begin|>",
            after: "<|tool_call_end|>",
        },
        separator: "",
        close: "<|tool_calls_section_end|>",
        parallel: true,
    },
    // Cohere Command R7B and A
    Style {
        name: "command",
        spelled: &["<|START_ACTION|>"],
        shows_tools: true,
        marks: &["<|START_ACTION|>", "<|END_ACTION|>"],
        open: "<|START_ACTION|>[",
        call: Call::Object { before: "", name: "tool_name", arguments: "parameters", after: "" },
        separator: ", ",
        close: "]<|END_ACTION|>",
        parallel: true,
    },
    // Nemotron Nano 2 and Super 1.5
    Style {
        name: "nemotron",
        spelled: &["<TOOLCALL>"],
        shows_tools: true,
        marks: &["<TOOLCALL>", "</TOOLCALL>"],
        open: "<TOOLCALL>[",
        call: Call::Object { before: "", name: "name", arguments: "arguments", after: "" },
        separator: ", ",
        close: "]</TOOLCALL>",
        parallel: true,
    },
    // Apriel, Hunyuan A13B
    Style {
        name: "tool-calls",
        spelled: &["<tool_calls>["],
        shows_tools: true,
        marks: &["<tool_calls>", "</tool_calls>"],
        open: "<tool_calls>[",
        call: Call::Object { before: "", name: "name", arguments: "arguments", after: "" },
        separator: ", ",
        close: "]</tool_calls>",
        parallel: true,
    },
    // MiniCPM 5
    Style {
        name: "minicpm",
        spelled: &["<function name=", "<param name="],
        shows_tools: true,
        marks: &[],
        open: "",
        call: Call::Tagged {
            before: "<function name=\"",
            between: "\">",
            argument: Argument { open: "<param name=\"", named: "\">", middle: "", close: "</param>" },
            after: "</function>",
        },
        separator: "\n",
        close: "",
        parallel: true,
    },
    Style {
        name: "longcat",
        spelled: &["<longcat_tool_call>"],
        shows_tools: true,
        marks: &["<longcat_tool_call>", "</longcat_tool_call>"],
        open: "",
        call: Call::Object {
            before: "<longcat_tool_call>\n",
            name: "name",
            arguments: "arguments",
            after: "\n</longcat_tool_call>",
        },
        separator: "\n",
        close: "",
        parallel: true,
    },
    // MiniMax M2
    Style {
        name: "minimax",
        spelled: &["<minimax:tool_call>", "<invoke name="],
        shows_tools: true,
        marks: &["<minimax:tool_call>", "</minimax:tool_call>"],
        open: "<minimax:tool_call>\n",
        call: Call::Tagged {
            before: "<invoke name=\"",
            between: "\">\n",
            argument: Argument {
                open: "<parameter name=\"",
                named: "\">",
                middle: "",
                close: "</parameter>\n",
            },
            after: "</invoke>\n",
        },
        separator: "",
        close: "</minimax:tool_call>",
        parallel: true,
    },
    // Seed-OSS
    Style {
        name: "seed",
        spelled: &["<seed:tool_call>", "<function="],
        shows_tools: true,
        marks: &["<seed:tool_call>", "</seed:tool_call>"],
        open: "",
        call: Call::Tagged {
            before: "<seed:tool_call>\n<function=",
            between: ">\n",
            argument: Argument { open: "<parameter=", named: ">", middle: "", close: "</parameter>\n" },
            after: "</function>\n</seed:tool_call>",
        },
        separator: "\n",
        close: "",
        parallel: true,
    },
    // Qwen 3 Coder, Qwen 3.5, Nemotron 3, MiMo, Step 3.5
    Style {
        name: "qwen-coder",
        spelled: &["<tool_call>", "<function=", "<parameter="],
        shows_tools: true,
        marks: &HERMES_MARKS,
        open: "",
        call: Call::Tagged {
            before: "<tool_call>\n<function=",
            between: ">\n",
            argument: Argument { open: "<parameter=", named: ">", middle: "\n", close: "\n</parameter>\n" },
            after: "</function>\n</tool_call>",
        },
        separator: "\n",
        close: "",
        parallel: true,
    },
    // GLM 4.5 and later, Ling 3, Laguna; some without the line feeds
    Style {
        name: "glm",
        spelled: &["<tool_call>", "<arg_key>", "<arg_value>"],
        shows_tools: true,
        marks: &GLM_MARKS,
        open: "",
        call: Call::Tagged {
            before: "<tool_call>",
            between: "\n",
            argument: Argument {
                open: "<arg_key>",
                named: "</arg_key>",
                middle: "\n<arg_value>",
                close: "</arg_value>\n",
            },
            after: "</tool_call>",
        },
        separator: "\n",
        close: "",
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

const GLM_MARKS: [&str; 6] =
    ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

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
        let begin = if self.open.is_empty() { self.call.before() } else { self.open }.trim();
        self.marks.iter().find(|mark| begin.starts_with(**mark)).copied().unwrap_or(begin)
    }
}
