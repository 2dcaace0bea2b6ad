//! Tool calls behind reasoning: a mark that a thought mentions begins no call.

use mlxcel_session::Tools;

use crate::structured::tools::{constraint, definitions, tokenizer};

const TEMPLATE: &str = "<think></think><tool_call>{{ tools }}";

/// Whether the constraint of an answer behind `prompt` admits `said`.
fn admits(template: &str, special: &[&str], prompt: &str, said: &str) -> bool {
    let tokenizer = tokenizer(template, special);
    let tools = Tools::new(&tokenizer, definitions()).unwrap();
    let (prompt, said) = (tokenizer.encode(prompt, false).unwrap(), tokenizer.encode(said, false).unwrap());
    let mut constraint = constraint(&tools, &tokenizer, &prompt).unwrap();
    let is_admitted = said.iter().all(|token| {
        constraint.mask().is_ok_and(|mask| mask.allows(*token)) && constraint.accept(*token).is_ok()
    });
    is_admitted && (constraint.is_complete() || constraint.mask().unwrap().allows(1))
}

#[test]
fn a_mark_in_reasoning_begins_no_call() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for special in [&[] as &[&str], &["<think>", "</think>"], &["<think>", "</think>", "<tool_call>"]] {
        // A special token is never text.
        let mark = if special.len() == 3 { "tool_call" } else { "<tool_call>" };
        for (prompt, said, is_admitted) in [
            ("x", format!("<think>Is {mark} right?</think>No."), true),
            ("x", format!("<think>Is {mark} right"), true),
            ("x", format!("<think></think>{call}"), true),
            ("x", format!("<think>Is {mark} right?</think>So: {call}"), true),
            ("x", "<think>a</think>So: <tool_call>now".to_owned(), false),
            ("x", "So: <tool_call>now".to_owned(), false),
            ("x", call.to_owned(), true),
            ("x", "Hello.".to_owned(), true),
            ("x<think>", format!("Is {mark} right?</think>No."), true),
            ("x<think>", format!("Is {mark} right?\n"), true),
            ("x<think>", format!("Is {mark} right?</think>So: {call}"), true),
            ("x<think>", "a</think>So: <tool_call>now".to_owned(), false),
            ("x<think></think>", "So: <tool_call>now".to_owned(), false),
        ] {
            assert_eq!(
                admits(TEMPLATE, special, prompt, &said),
                is_admitted,
                "{special:?}: {prompt}: {said}"
            );
        }
    }
}

#[test]
fn a_channel_of_reasoning_may_come_before_a_call() {
    let special = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"];
    let template = format!("{}{{{{ tools }}}}", special.concat());
    for (prompt, said) in [
        ("x", "<|channel>thought\nHm.<channel|>So: <|tool_call>call:now{}<tool_call|>"),
        ("x", "<|channel>thought\n<channel|>Hello."),
        ("x<|channel>thought\n<channel|>", "<|tool_call>call:now{}<tool_call|>"),
        ("x<|channel>thought\n", "Hm.<channel|><|tool_call>call:now{}<tool_call|>"),
    ] {
        assert!(admits(&template, &special, prompt, said), "{prompt}: {said}");
    }
    assert!(!admits(&template, &special, "x", "<|channel>thought\n<channel|><|tool_call>call:then{}"));
}
