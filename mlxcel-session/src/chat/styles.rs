//! The call formats of published models, one entry each, from which grammar and parser are built.

use super::ChatTemplate;
use super::style::{Argument, Call, Id, Literals, Style};

/// In the order in which they are looked for; the last one is for every other model.
pub(crate) const STYLES: [Style; 29] = [
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
    Style {
        name: "deepseek-v3.2",
        spelled: &["｜DSML｜", "function_calls>"],
        shows_tools: true,
        marks: &["｜DSML｜"],
        open: "<｜DSML｜function_calls>\n",
        call: DSML_CALL,
        separator: "",
        close: "</｜DSML｜function_calls>",
        parallel: true,
    },
    Style {
        name: "deepseek-v4",
        spelled: &["｜DSML｜", "tool_calls>"],
        shows_tools: true,
        marks: &["｜DSML｜"],
        open: "<｜DSML｜tool_calls>\n",
        call: DSML_CALL,
        separator: "",
        close: "</｜DSML｜tool_calls>",
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
    Style {
        name: "gemma4",
        spelled: &["<|tool_call>", "<tool_call|>"],
        shows_tools: true,
        marks: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
        open: "",
        call: Call::Keywords {
            before: "<|tool_call>call:",
            open: "{",
            assign: ":",
            literals: Literals::Marked("<|\"|>"),
            after: "}<tool_call|>",
        },
        separator: "",
        close: "",
        parallel: true,
    },
    Style {
        name: "functiongemma",
        spelled: &["<start_function_call>", "<escape>"],
        shows_tools: true,
        marks: &["<start_function_call>", "<end_function_call>", "<escape>"],
        open: "",
        call: Call::Keywords {
            before: "<start_function_call>call:",
            open: "{",
            assign: ":",
            literals: Literals::Marked("<escape>"),
            after: "}<end_function_call>",
        },
        separator: "",
        close: "",
        parallel: true,
    },
    // LFM2 and LFM2.5; not all of their templates spell out the marks
    Style {
        name: "lfm2",
        spelled: &["<|im_start|>", "List of tools: "],
        shows_tools: true,
        marks: &["<|tool_call_start|>", "<|tool_call_end|>"],
        open: "<|tool_call_start|>[",
        call: PYTHON_CALL,
        separator: ", ",
        close: "]<|tool_call_end|>",
        parallel: true,
    },
    // Olmo 3
    Style {
        name: "olmo3",
        spelled: &["<function_calls>", "<functions>"],
        shows_tools: true,
        marks: &["<function_calls>", "</function_calls>"],
        open: "<function_calls>",
        call: PYTHON_CALL,
        separator: "\n",
        close: "</function_calls>",
        parallel: true,
    },
    // Llama 4, ToolACE and others with a template that asks for it: the calls are the whole answer
    Style {
        name: "pythonic",
        spelled: &["func_name1(param"],
        shows_tools: true,
        marks: &[],
        open: "[",
        call: PYTHON_CALL,
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
            argument: Argument {
                open: "<param name=\"",
                named: "\">",
                middle: "",
                close: "</param>",
                kinds: None,
            },
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
                kinds: None,
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
            argument: Argument {
                open: "<parameter=",
                named: ">",
                middle: "",
                close: "</parameter>\n",
                kinds: None,
            },
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
            argument: Argument {
                open: "<parameter=",
                named: ">",
                middle: "\n",
                close: "\n</parameter>\n",
                kinds: None,
            },
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
                kinds: None,
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
    // Functionary 3.1
    Style {
        name: "functionary",
        spelled: &["<|start_header_id|>", "<function="],
        shows_tools: true,
        marks: &[],
        open: "",
        call: Call::Named { before: "<function=", id: Id::None, between: ">", after: "</function>" },
        separator: "",
        close: "",
        parallel: true,
    },
    // Firefunction 2, whose template prints functions of another variable
    Style {
        name: "firefunction",
        spelled: &["functools["],
        shows_tools: false,
        marks: &[],
        open: "functools[",
        call: Call::Object { before: "", name: "name", arguments: "arguments", after: "" },
        separator: ", ",
        close: "]",
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

/// As Python writes a call with keywords.
const PYTHON_CALL: Call =
    Call::Keywords { before: "", open: "(", assign: "=", literals: Literals::Python, after: ")" };

const DSML_CALL: Call = Call::Tagged {
    before: "<｜DSML｜invoke name=\"",
    between: "\">\n",
    argument: Argument {
        open: "<｜DSML｜parameter name=\"",
        named: "\">",
        middle: "",
        close: "</｜DSML｜parameter>\n",
        kinds: Some(["\" string=\"true", "\" string=\"false"]),
    },
    after: "</｜DSML｜invoke>\n",
};

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
}
