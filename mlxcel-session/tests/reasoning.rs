//! Reasoning told apart from the answer.

use std::sync::Arc;

use crate::support::{Scripted, added_token, published_template, tokenizer_file, tokenizer_with};
use mlxcel_session::{
    AnswerPart, ChatOptions, Engine, Message, Model, Options, ReasoningSplitter, Tokenizer,
};
use proptest::prelude::*;

/// The bundled tokenizer with the tokens of a style, and its template.
fn tokenizer(style: &str, tokens: &[&str]) -> Tokenizer {
    let mut file = tokenizer_file();
    let added = file["added_tokens"].as_array_mut().unwrap();
    added.extend(tokens.iter().map(|token| added_token(0, token, !token.contains("think"))));
    tokenizer_with(&file, &published_template(style))
}

const THINK: [&str; 4] = ["<think>", "</think>", "<|im_start|>", "<|im_end|>"];
const HARMONY: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"];

/// Reasoning, answer and calls of a text whose pieces are given.
fn split<'t>(mut splitter: ReasoningSplitter, pieces: impl IntoIterator<Item = &'t str>) -> [String; 3] {
    let mut parts: Vec<_> = pieces.into_iter().flat_map(|piece| splitter.push(piece)).collect();
    parts.extend(splitter.finish());
    assert_eq!(splitter.finish(), []);
    gathered(parts)
}

fn gathered(parts: impl IntoIterator<Item = AnswerPart>) -> [String; 3] {
    let mut all = [String::new(), String::new(), String::new()];
    for part in parts {
        match part {
            AnswerPart::Reasoning(text) => all[0].push_str(&text),
            AnswerPart::Answer(text) => all[1].push_str(&text),
            AnswerPart::Call { to, text } => all[2].push_str(&format!("{to}({text})")),
            _ => unreachable!(),
        }
    }
    all
}

/// `text` in pieces that end anywhere.
fn cut<'t>(text: &'t str, cuts: &[prop::sample::Index]) -> Vec<&'t str> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    ends.retain(|&end| text.is_char_boundary(end));
    ends.extend([0, text.len()]);
    ends.sort_unstable();
    ends.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

proptest! {
    #[test]
    fn tagged_reasoning_is_split_without_loss(
        lead in "[ \n]{0,3}",
        reasoning in "([a-z <>/\né]|</thin|think>|<think>){0,8}",
        answer in "([a-z <>/\né]|</think>|<think>){0,8}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        prop_assume!(!reasoning.contains("</think>"));
        let text = format!("{lead}<think>{reasoning}</think>{answer}");
        let splitter = ReasoningSplitter::tags("<think>", "</think>");
        // The first closing tag may begin in what is thought.
        let at = text.find("</think>").unwrap();
        let expected = [text[..at].replacen("<think>", "", 1), text[at + 8..].to_owned(), String::new()];
        prop_assert_eq!(split(splitter.clone(), cut(&text, &cuts)), expected);
        // Without the first tag it is an answer to its end.
        let plain = format!("x{text}");
        prop_assert_eq!(split(splitter.clone(), cut(&plain, &cuts)), [String::new(), plain.clone(), String::new()]);
        // One that does not end is reasoning to its end.
        let open = format!("<think>{reasoning}");
        prop_assert_eq!(split(splitter, cut(&open, &cuts)), [reasoning, String::new(), String::new()]);
    }

    #[test]
    fn channel_reasoning_is_split_without_loss(
        messages in prop::collection::vec((0..4usize, "([a-z <|>\né]|<\\|en|d\\|>){0,6}"), 0..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..16),
    ) {
        prop_assume!(messages.iter().all(|(_, text)| !text.contains("<|end|>")));
        let mut text = String::new();
        let mut expected = [String::new(), String::new(), String::new()];
        for (index, (kind, said)) in messages.iter().enumerate() {
            let said = said.trim_end_matches(['<', '|', 'e', 'n']);
            if index > 0 {
                text.push_str("<|start|>assistant");
            }
            let header = ["<|channel|>analysis", "<|channel|>final", "<|channel|>commentary", " to=functions.f<|channel|>commentary json"];
            text.push_str(&format!("{}<|message|>{said}<|end|>", header[*kind]));
            match kind {
                0 => expected[0].push_str(said),
                3 if !said.is_empty() => expected[2].push_str(said),
                3 => {}
                _ => expected[1].push_str(said),
            }
        }
        let format = tokenizer("gpt_oss", &HARMONY).reasoning().unwrap().clone();
        let mut got = split(format.splitter(), cut(&text, &cuts));
        // Pieces of a call name its tool each.
        got[2] = got[2].replace("functions.f(", "").replace(')', "");
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn harmony_headers_separate_reasoning_answer_and_calls() {
    let format = tokenizer("gpt_oss", &HARMONY).reasoning().unwrap().clone();
    let text = "<|channel|>analysis<|message|>Weather…<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather \
        <|constrain|>json<|message|>{\"place\": \"Köln\"}<|call|>";
    assert_eq!(
        split(format.splitter(), [text]),
        ["Weather…", "", "functions.get_weather({\"place\": \"Köln\"})"].map(str::to_owned)
    );
    // What has no marks is an answer, and a header without a message says nothing.
    assert_eq!(split(format.splitter(), ["Hel", "lo"])[1], "Hello");
    assert_eq!(split(format.splitter(), ["<|channel|>analysis"]), [const { String::new() }; 3]);
}

#[test]
fn reasoning_formats_are_detected_from_template_or_vocabulary() {
    for (style, tokens, expected) in [
        ("qwen3", &THINK[..], Some(["a", "b"])),
        ("smollm3", &THINK, Some(["a", "b"])),
        ("deepseek", &[], Some(["a", "b"])),
        ("chatml", &THINK, Some(["a", "b"])),
        ("chatml", &[], None),
        ("llama3", &[], None),
    ] {
        let tokenizer = tokenizer(style, tokens);
        let split = tokenizer.reasoning().map(|format| split(format.splitter(), ["<think>a</think>b"]));
        assert_eq!(
            split,
            expected.map(|[reasoning, answer]| [reasoning.into(), answer.into(), String::new()]),
            "{style}"
        );
    }
}

#[test]
fn reasoning_between_tags_of_published_models_is_split() {
    for (template, answer) in [
        ("<|channel>thought {{ '<channel|>' }}", "<|channel>thought\nHm.<channel|>Yes."),
        ("<longcat_think></longcat_think>", "<longcat_think>\nHm.</longcat_think>Yes."),
        ("◁think▷◁/think▷", "◁think▷\nHm.◁/think▷Yes."),
        ("<|inner_prefix|><|inner_suffix|>", "<|inner_prefix|>\nHm.<|inner_suffix|>Yes."),
        ("<thought></thought>", "<thought>\nHm.</thought>Yes."),
        (
            "<thinking></thinking>Here are my reasoning steps:\n[BEGIN FINAL RESPONSE]",
            "Here are my reasoning steps:\nHm.[BEGIN FINAL RESPONSE]Yes.",
        ),
    ] {
        let tokenizer = tokenizer_with(&tokenizer_file(), template);
        let splitter = tokenizer.reasoning().unwrap().splitter();
        for size in 1..answer.len() {
            let pieces: Vec<char> = answer.chars().collect();
            let pieces: Vec<String> = pieces.chunks(size).map(String::from_iter).collect();
            let [reasoning, answer, _] = split(splitter.clone(), pieces.iter().map(String::as_str));
            assert_eq!((reasoning.trim(), answer.as_str()), ("Hm.", "Yes."), "{template}");
        }
    }
}

/// What becomes of an answer after the prompt of `messages`.
fn after(tokenizer: &Tokenizer, messages: &[Message], go_on: bool, answer: &str) -> [String; 3] {
    let options = ChatOptions::default().with_continue_final_message(go_on);
    let prompt = tokenizer.encode_chat(messages, &options).unwrap();
    let splitter = tokenizer.reasoning().unwrap().splitter_after(tokenizer, &prompt).unwrap();
    split(splitter, [answer])
}

#[test]
fn a_prompt_may_end_inside_reasoning() {
    let user = Message::user("Is <think> a tag?");
    // This template opens the tag itself, which is one token or several.
    for tokens in [&THINK[..], &[]] {
        let tokenizer = tokenizer("deepseek", tokens);
        assert_eq!(after(&tokenizer, std::slice::from_ref(&user), false, "a</think>b")[..2], ["a", "b"]);
    }
    let tokenizer = tokenizer("qwen3", &THINK);
    assert_eq!(after(&tokenizer, std::slice::from_ref(&user), false, "a</think>b")[..2], ["", "a</think>b"]);
    let thinking = [user.clone(), Message::assistant("<think>\nHm")];
    assert_eq!(after(&tokenizer, &thinking, true, "a</think>b")[..2], ["a", "b"]);
    let answering = [user.clone(), Message::assistant("<think>\nHm\n</think>\n\nSo")];
    assert_eq!(after(&tokenizer, &answering, true, "a</think>b")[..2], ["", "a</think>b"]);
    let harmony = self::tokenizer("gpt_oss", &HARMONY);
    assert_eq!(after(&harmony, &[user.clone(), Message::assistant("So")], true, " a")[..2], ["", " a"]);
    let final_channel = "<|channel|>final<|message|>a";
    assert_eq!(after(&harmony, &[user], false, final_channel)[..2], ["", "a"]);
}

#[test]
fn streams_split_reasoning_when_special_tokens_are_skipped() {
    for (style, tokens, answer) in [
        ("qwen3", &THINK[..], "<think>Once</think>the end<|im_end|>"),
        (
            "gpt_oss",
            &HARMONY,
            "<|channel|>analysis<|message|>Once<|end|><|start|>assistant<|channel|>final<|message|>the end<|return|>",
        ),
    ] {
        let tokenizer = tokenizer(style, tokens);
        let messages = [Message::user("Hi")];
        let prompt = tokenizer.encode_chat(&messages, &ChatOptions::default()).unwrap();
        let answer = tokenizer.encode(answer, false).unwrap();
        let end = *answer.last().unwrap();
        let mut replay = Scripted::replay(vec![[prompt, answer].concat()]);
        replay.info.vocabulary_size = tokenizer.vocabulary_size();
        replay.info.stop_tokens = vec![end];
        let model = Model::from_parts(Arc::new(replay), tokenizer);
        let options = Options::default().with_skip_special_tokens(true);
        let mut parts = model.chat(&messages, &options).unwrap().parts().unwrap();
        let gathered = gathered(parts.by_ref().map(Result::unwrap));
        assert_eq!(gathered[..2], ["Once", "the end"], "{style}");
        assert!(parts.stream().usage().generated_tokens > 4);
        let request = Engine::new(model).unwrap().chat(&messages, &options).unwrap();
        assert_eq!(self::gathered(request.parts().map(Result::unwrap)), gathered, "{style}, among requests");
    }
    // A model that marks nothing answers.
    let case = &crate::support::oracle()[0];
    let parts =
        Scripted::oracle().model().chat(case.messages.as_ref().unwrap(), &Options::default()).unwrap();
    assert_eq!(gathered(parts.parts().unwrap().map(Result::unwrap))[1], case.completion);
}
