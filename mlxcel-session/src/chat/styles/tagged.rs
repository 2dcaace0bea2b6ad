//! Calls with each argument between tags.

use crate::chat::style::{Argument, Call, Style};

pub(super) const DEEPSEEK_V3_2: Style = Style {
    open: "<｜DSML｜function_calls>\n",
    close: "</｜DSML｜function_calls>",
    ..dsml("deepseek-v3.2", &["｜DSML｜", "function_calls>"])
};

pub(super) const DEEPSEEK_V4: Style = Style {
    open: "<｜DSML｜tool_calls>\n",
    close: "</｜DSML｜tool_calls>",
    ..dsml("deepseek-v4", &["｜DSML｜", "tool_calls>"])
};

/// MiniCPM 5.
pub(super) const MINICPM: Style = Style {
    separator: "\n",
    ..Style::new(
        "minicpm",
        &["<function name=", "<param name="],
        Call::Tagged {
            before: "<function name=\"",
            between: "\">",
            argument: Argument::new("<param name=\"", "\">", "</param>"),
            after: "</function>",
        },
    )
};

/// MiniMax M3.
pub(super) const MINIMAX_M3: Style = Style {
    marks: &["]<]minimax[>[", "<tool_call>", "</tool_call>"],
    open: "]<]minimax[>[<tool_call>\n",
    close: "]<]minimax[>[</tool_call>",
    ..Style::new(
        "minimax-m3",
        &["]<]minimax[>["],
        Call::Elements {
            before: "]<]minimax[>[<invoke name=\"",
            between: "\">",
            mark: "]<]minimax[>[",
            after: "]<]minimax[>[</invoke>\n",
        },
    )
};

/// MiniMax M2.
pub(super) const MINIMAX: Style = Style {
    marks: &["<minimax:tool_call>", "</minimax:tool_call>"],
    open: "<minimax:tool_call>\n",
    close: "</minimax:tool_call>",
    ..Style::new(
        "minimax",
        &["<minimax:tool_call>", "<invoke name="],
        Call::Tagged {
            before: "<invoke name=\"",
            between: "\">\n",
            argument: Argument::new("<parameter name=\"", "\">", "</parameter>\n"),
            after: "</invoke>\n",
        },
    )
};

/// Seed-OSS.
pub(super) const SEED: Style = Style {
    marks: &["<seed:tool_call>", "</seed:tool_call>"],
    separator: "\n",
    ..Style::new(
        "seed",
        &["<seed:tool_call>", "<function="],
        Call::Tagged {
            before: "<seed:tool_call>\n<function=",
            between: ">\n",
            argument: Argument::new("<parameter=", ">", "</parameter>\n"),
            after: "</function>\n</seed:tool_call>",
        },
    )
};

/// Qwen 3 Coder, Qwen 3.5, Nemotron 3, MiMo, Step 3.5. They leave out closing tags and the first one now and then.
pub(super) const QWEN_CODER: Style = Style {
    marks: &["<tool_call>", "</tool_call>"],
    short: "<function=",
    separator: "\n",
    ..Style::new(
        "qwen-coder",
        &["<tool_call>", "<function=", "<parameter="],
        Call::Tagged {
            before: "<tool_call>\n<function=",
            between: ">\n",
            argument: Argument {
                middle: "\n",
                ends: &["\n<parameter=", "\n</function>"],
                ..Argument::new("<parameter=", ">", "\n</parameter>\n")
            },
            after: "</function>\n</tool_call>",
        },
    )
};

/// GLM 4.5 and later, Ling 3, Laguna; some without the line feeds.
pub(super) const GLM: Style = Style {
    marks: &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    separator: "\n",
    ..Style::new(
        "glm",
        &["<tool_call>", "<arg_key>", "<arg_value>"],
        Call::Tagged {
            before: "<tool_call>",
            between: "\n",
            argument: Argument {
                middle: "\n<arg_value>",
                ..Argument::new("<arg_key>", "</arg_key>", "</arg_value>\n")
            },
            after: "</tool_call>",
        },
    )
};

const fn dsml(name: &'static str, spelled: &'static [&'static str]) -> Style {
    let call = Call::Tagged {
        before: "<｜DSML｜invoke name=\"",
        between: "\">\n",
        argument: Argument {
            kinds: Some(["\" string=\"true", "\" string=\"false"]),
            ..Argument::new("<｜DSML｜parameter name=\"", "\">", "</｜DSML｜parameter>\n")
        },
        after: "</｜DSML｜invoke>\n",
    };
    Style { marks: &["｜DSML｜"], ..Style::new(name, spelled, call) }
}
