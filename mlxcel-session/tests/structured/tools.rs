//! Tool calls: the parser returns what the grammar of a style admits, without loss.

use mlxcel_session::{
    Constraint, ErrorKind, FinishReason, Grammar, Message, Options, ReasoningSplitter, TokenId, Tokenizer,
    Tool, ToolChoice, ToolParser, ToolPart, Tools,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::structured::harness::{Chance, hot, random_model, storyteller};
use crate::support::{added_token, published_template, tokenizer_file, tokenizer_of};

/// A template with the text of a style's published templates, and its special tokens.
pub(super) const STYLES: [(&str, &str, &[&str]); 32] = [
    ("gpt-oss", "<|channel|><|message|>{{ tools }}", &["<|channel|>", "<|constrain|>", "<|message|>"]),
    ("functionary-v3.2", "<|start_header_id|>{{ tools }}>>>all\n", &[]),
    ("deepseek-v3", "<｜tool▁calls▁begin｜>```json", &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"]),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜>{{ tools }}",
        &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    ),
    ("mistral-arguments", "[TOOL_CALLS][ARGS]{{ tools }}", &["[TOOL_CALLS]", "[ARGS]"]),
    ("mistral", "[TOOL_CALLS]{{ tools }}", &["[TOOL_CALLS]"]),
    ("granite", "<|tool_call|>{{ tools }}", &["<|tool_call|>"]),
    ("hermes", "<tool_call>{{ tools }}", &[]),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_argument_begin|>{{ tools }}",
        &["<|tool_calls_section_begin|>", "<|tool_call_end|>"],
    ),
    ("command", "<|START_ACTION|>{{ tools }}", &["<|START_ACTION|>", "<|END_ACTION|>"]),
    ("nemotron", "<TOOLCALL>{{ tools }}", &[]),
    ("tool-calls", "<tool_calls>[{{ tools }}", &[]),
    ("longcat", "<longcat_tool_call>{{ tools }}", &[]),
    ("minicpm", "<function name=<param name={{ tools }}", &[]),
    ("minimax-m3", "]<]minimax[>[{{ tools }}", &["]<]minimax[>["]),
    ("minimax", "<minimax:tool_call><invoke name={{ tools }}", &["<minimax:tool_call>"]),
    ("seed", "<seed:tool_call><function={{ tools }}", &["<seed:tool_call>"]),
    ("qwen-coder", "<tool_call><function=<parameter={{ tools }}", &[]),
    ("glm", "<tool_call><arg_key><arg_value>{{ tools }}", &["<tool_call>", "</arg_value>"]),
    ("deepseek-v3.2", "｜DSML｜function_calls>{{ tools }}", &["｜DSML｜"]),
    ("deepseek-v4", "｜DSML｜tool_calls>{{ tools }}", &[]),
    ("gemma4", "<|tool_call><tool_call|>{{ tools }}", &["<|tool_call>", "<tool_call|>", "<|\"|>"]),
    ("functiongemma", "<start_function_call><escape>{{ tools }}", &["<escape>"]),
    ("lfm2", "<|im_start|>List of tools: {{ tools }}", &["<|tool_call_start|>", "<|tool_call_end|>"]),
    ("olmo3", "<function_calls><functions>{{ tools }}", &[]),
    ("pythonic", "<|header_start|>[func_name1(param1=value1)]{{ tools }}", &[]),
    ("functionary", "<|start_header_id|><function={{ tools }}", &[]),
    ("firefunction", "<|start_header_id|> functools[", &[]),
    ("llama4", "<|header_start|>dictionary of argument name{{ tools }}", &[]),
    ("llama3", "<|start_header_id|>{{ tools }}", &[]),
    ("gemma", "<start_of_turn>", &[]),
    ("generic", "{{ messages[0].content }}", &[]),
];

/// The bundled tokenizer with a template, and with further special tokens.
pub(super) fn tokenizer(template: &str, special: &[&str]) -> Tokenizer {
    let mut file = tokenizer_file();
    let added = file["added_tokens"].as_array_mut().unwrap();
    added.extend((729..).zip(special).map(|(id, token)| added_token(id, token, true)));
    let (file, config) = (file.to_string(), storyteller().join("tokenizer_config.json"));
    let config = std::fs::read_to_string(config).unwrap();
    let files =
        [("tokenizer.json", &*file), ("tokenizer_config.json", &config), ("chat_template.jinja", template)];
    tokenizer_of(&files).unwrap()
}

/// Tools offered to a model of this style.
pub(super) fn tools_of(style: &str, definitions: impl IntoIterator<Item = Value>) -> Tools {
    let (_, template, special) = STYLES.into_iter().find(|(name, ..)| *name == style).unwrap();
    Tools::new(&tokenizer(template, special), definitions).unwrap()
}

fn weather() -> Value {
    json!({ "type": "function", "function": { "name": "get_weather", "description": "The weather", "parameters": {
        "type": "object",
        "properties": { "city": { "type": "string", "maxLength": 8 }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city"]
    }}})
}

pub(super) fn definitions() -> Vec<Value> {
    let now = json!({ "type": "function", "function": { "name": "now" } });
    let nested = json!({ "type": "function", "function": { "name": "plan.trip-2", "parameters": {
        "properties": { "stops": { "type": "array", "maxItems": 2, "items": { "$ref": "#/$defs/stop" } } },
        "$defs": { "stop": { "enum": ["</tool_call>", "}\n", "[TOOL_CALLS]", "\"]" ] } },
        "additionalProperties": false
    }}});
    vec![weather(), now, nested]
}

#[test]
fn a_parser_with_a_splitter_separates_reasoning_between_tags() {
    let tools = tools_of("hermes", definitions());
    let splitter = || ReasoningSplitter::tags("<think>", "</think>");
    let (reasoning, answer) =
        ("a <tool_call>", "b<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>");
    let said = format!("<think>{reasoning}</think>{answer}");
    for seed in 0..20 {
        let parts = parse(tools.parser_after(splitter()), &said, &mut Chance(seed));
        let thought = parts.iter().filter_map(|part| match part {
            ToolPart::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!((thought.collect::<String>().as_str(), text(&parts).as_str()), (reasoning, "b"));
        assert_eq!(calls(&parts).len(), 1);
        // A forced call leaves no room for reasoning.
        let forced = tools.clone().with_choice(ToolChoice::Required).unwrap();
        let parts = parse(forced.parser_after(splitter()), &said, &mut Chance(seed));
        assert_eq!((text(&parts), calls(&parts).len()), (format!("<think>{reasoning}</think>b"), 1));
    }
}

/// Reads a text in pieces of chance.
pub(super) fn parse(mut parser: ToolParser, text: &str, chance: &mut Chance) -> Vec<ToolPart> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.char_indices().nth(1 + chance.below(7)).map_or(rest.len(), |(at, _)| at);
        parts.extend(parser.push(&rest[..length]));
        rest = &rest[length..];
    }
    parts.extend(parser.finish());
    parts
}

pub(super) fn calls(parts: &[ToolPart]) -> Vec<(String, Value)> {
    let call = |part: &_| match part {
        ToolPart::Call(call) => Some((call.name.clone(), serde_json::from_str(&call.arguments).unwrap())),
        _ => None,
    };
    parts.iter().filter_map(call).collect()
}

pub(super) fn text(parts: &[ToolPart]) -> String {
    parts
        .iter()
        .filter_map(|part| if let ToolPart::Text(text) = part { Some(text.as_str()) } else { None })
        .collect()
}

/// What constrains an answer behind `prompt` where tools are offered: nothing, if no mark begins a call.
pub(super) fn constraint(
    tools: &Tools,
    tokenizer: &Tokenizer,
    prompt: &[TokenId],
) -> Option<Box<dyn Constraint>> {
    let mut options = Options::default();
    tools.offer(&mut vec![Message::user("x")], &mut options).unwrap();
    let source = options.constraint?;
    Some(source.start_after(&random_model(tokenizer, 0), prompt).unwrap())
}

/// What a model of random logits answers where tools are offered.
fn answer(tools: &Tools, tokenizer: &Tokenizer, seed: u64) -> (String, Option<FinishReason>) {
    let mut messages = vec![Message::user("x")];
    let mut options = hot(600, seed);
    tools.offer(&mut messages, &mut options).unwrap();
    options.skip_special_tokens = true;
    let said = random_model(tokenizer, seed).generate("x", &options).unwrap().complete().unwrap();
    (said.text, Some(said.finish_reason))
}

/// Parameters that are combined of parts, each of which names some of the fields.
#[test]
fn combined_parameters_can_be_satisfied() {
    let part = |field: &str| json!({ "type": "object", "properties": { field: { "type": "integer" } }, "required": [field] });
    let tokenizer = tokenizer("<tool_call>{{ tools }}", &[]);
    for parameters in [
        json!({ "allOf": [part("a"), part("b")] }),
        json!({ "allOf": [{ "$ref": "#/$defs/a" }, part("b")], "$defs": { "a": part("a") } }),
        json!({ "allOf": [{ "properties": { "at": part("a") } }, { "properties": { "at": part("b") } }], "required": ["at"] }),
        json!({ "$ref": "#/$defs/a", "properties": { "b": {} }, "required": ["b"], "$defs": { "a": part("a") } }),
    ] {
        let function = json!({ "type": "function", "function": { "name": "add", "parameters": parameters } });
        let tools = Tools::new(&tokenizer, [function]).unwrap().with_choice(ToolChoice::Required).unwrap();
        let mut options = hot(4, 1);
        tools.offer(&mut vec![Message::user("x")], &mut options).unwrap();
        let model = random_model(&tokenizer, 1);
        model.generate("x", &options).unwrap().complete().unwrap();
    }
}

#[test]
fn tool_calls_admitted_by_a_grammar_are_parsed() {
    for (style, template, special) in STYLES {
        let tokenizer = tokenizer(template, special);
        let tools = Tools::new(&tokenizer, definitions()).unwrap();
        assert_eq!(tools.style(), style);
        let required = tools.clone().with_choice(ToolChoice::Required).unwrap();
        let named = tools.clone().with_choice(ToolChoice::Named("get_weather".to_owned())).unwrap();
        // The definition does not say so, but no field is invented.
        let mut closed = weather()["function"]["parameters"].clone();
        closed["additionalProperties"] = false.into();
        let validator = jsonschema::validator_for(&closed).unwrap();
        let mut whole = 0;
        for seed in 0..12 {
            let mut chance = Chance(seed);
            for (tools, is_named) in [(&required, false), (&named, true)] {
                let (said, reason) = answer(tools, &tokenizer, seed);
                let parts = parse(tools.parser(), &said, &mut chance);
                if reason != Some(FinishReason::Stop) {
                    continue;
                }
                let calls = calls(&parts);
                assert!(!calls.is_empty() && text(&parts).trim().is_empty(), "{style}: {said}\n{parts:?}");
                assert!(!is_named || (calls.len() == 1 && calls[0].0 == "get_weather"), "{style}: {said}");
                for (name, arguments) in &calls {
                    assert!(name != "get_weather" || validator.is_valid(arguments), "{style}: {said}");
                }
                whole += 1;
            }
            // Where the model may say anything, the text that is none of a call is all there.
            let (said, _) = answer(&tools, &tokenizer, seed);
            let parts = parse(tools.parser(), &said, &mut chance);
            if calls(&parts).is_empty() && !["gpt-oss", "functionary-v3.2"].contains(&style) {
                assert_eq!(text(&parts), said, "{style}");
            }
        }
        assert!(whole >= 12, "{style}: {whole} are whole");
    }
}

#[test]
fn published_tool_calls_are_parsed() {
    // The text before the call, and the call with NAME for `"name": "get_weather"` and CITY for the arguments.
    for (style, before, call) in [
        ("hermes", "I look.\n", "<tool_call>\n{NAME, \"arguments\": CITY}\n</tool_call>"),
        (
            "hermes",
            "",
            "<tool_call>{\"arguments\":CITY,NAME}</tool_call>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
        ),
        ("llama3", "", "{NAME, \"parameters\": CITY}"),
        ("llama3", "", "{NAME, \"arguments\": CITY}"),
        ("llama3", "", "<|python_tag|>{NAME, \"parameters\": CITY}"),
        ("mistral", "", "[TOOL_CALLS] [{NAME, \"arguments\": CITY, \"id\": \"abc\"}]"),
        ("mistral-arguments", "", "[TOOL_CALLS]get_weather[ARGS]CITY[TOOL_CALLS]now[ARGS]{}"),
        ("mistral-arguments", "", "[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]CITY"),
        ("granite", "", "<|tool_call|>[{NAME, \"arguments\": CITY}]"),
        (
            "deepseek-v3",
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\nCITY\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "deepseek-v3.1",
            "Let me see.",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>CITY<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "gpt-oss",
            "",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>CITY",
        ),
        (
            "command",
            "",
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": CITY}\n]<|END_ACTION|>",
        ),
        ("tool-calls", "I look.", "<tool_calls>[{NAME, \"arguments\": CITY, \"id\": \"a\"}]</tool_calls>"),
        ("longcat", "", "<longcat_tool_call>\n{NAME, \"arguments\": CITY}\n</longcat_tool_call>"),
        ("gemma", "", "```tool_call\n{NAME, \"parameters\": CITY}\n```"),
    ] {
        let call = call.replace("NAME", "\"name\": \"get_weather\"").replace("CITY", "{\"city\": \"Oslo\"}");
        let (said, tools) = (format!("{before}{call}"), tools_of(style, definitions()));
        for seed in 0..20 {
            let parts = parse(tools.parser(), &said, &mut Chance(seed));
            let calls = calls(&parts);
            assert_eq!(
                calls.first(),
                Some(&("get_weather".to_owned(), json!({ "city": "Oslo" }))),
                "{style}: {parts:?}"
            );
            assert_eq!(text(&parts), before, "{style}: {parts:?}");
        }
    }
}

#[test]
fn text_that_is_not_a_call_stays_text() {
    let tools = tools_of("hermes", definitions());
    let whole = r#"<tool_call>{"name": "now", "arguments": {}}</tool_call>"#;
    for said in [
        "Just text.",
        "<tool_call>",
        r#"<tool_call>{"name": "unknown", "arguments": {}}</tool_call>"#,
        r#"<tool_call>{"name": "now", "arguments": [}</tool_call> and on"#,
        r#"<tool_call>{"name": "now", "arguments": {"a": "#,
        "a < b, <tool, <tool_call <tool_call>}{",
    ] {
        assert_eq!(text(&parse(tools.parser(), said, &mut Chance(1))), said);
        let both = format!("{said}{whole}");
        let parts = parse(tools.parser(), &both, &mut Chance(2));
        assert!(
            calls(&parts).len() == 1 && text(&parts) == said || text(&parts) == both,
            "{both}: {parts:?}"
        );
    }
    let llama = tools_of("llama3", definitions());
    for said in [
        "{\"a\": 1}",
        "  {",
        "<|python_tag|>",
        "<|python_tag|>print(1)",
        "{}{}",
        "{\"name\": \"now\"}",
        "Text {\"name\": \"now\", \"parameters\": {}}",
    ] {
        assert_eq!(text(&parse(llama.parser(), said, &mut Chance(3))), said);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No text is lost if no call is found, and splitting into pieces changes nothing.
    #[test]
    fn tool_call_parsing_loses_no_text(parts in prop::collection::vec(prop::sample::select(vec![
        "<tool_call>", "</tool_call>", "{\"name\": \"now\", \"arguments\": {}}", "{\"name\": \"no\"}", "\n", " ", "{", "}", "text", "<", "ü", "[TOOL_CALLS]",
        "[", "]", "now", "[ARGS]", "{}", ", ", "```", "tool_call", "<|tool_call|>",
    ]), 0..12), seed in any::<u64>(), style in 3..STYLES.len()) {
        let said = parts.concat();
        let tools = tools_of(STYLES[style].0, definitions());
        let whole = { let mut parser = tools.parser(); let mut parts = parser.push(&said); parts.extend(parser.finish()); parts };
        let cut = parse(tools.parser(), &said, &mut Chance(seed));
        prop_assert_eq!(text(&whole), text(&cut));
        prop_assert_eq!(calls(&whole), calls(&cut));
        if calls(&whole).is_empty() {
            prop_assert_eq!(text(&whole), said);
        }
    }
}

#[test]
fn published_templates_are_matched_to_their_tool_format() {
    for (file, style) in [
        ("qwen3", "hermes"),
        ("llama3", "llama3"),
        ("mistral", "mistral"),
        ("granite", "granite"),
        ("gemma3", "gemma"),
        ("gpt_oss", "gpt-oss"),
        ("chatml", "generic"),
    ] {
        let tokenizer = tokenizer(&published_template(file), &[]);
        let tools = Tools::new(&tokenizer, definitions()).unwrap();
        assert_eq!(tools.style(), style, "{file}");
    }
}

#[test]
fn invalid_tools_are_rejected() {
    let tokenizer = tokenizer("{{ tools }}", &[]);
    for wrong in [
        json!([{}]),
        json!([{ "function": { "name": "a b" } }]),
        json!([{ "function": { "name": "a" } }, { "function": { "name": "a" } }]),
        json!([{ "function": { "name": "a", "parameters": { "type": "string" } } }]),
        json!([{ "function": { "name": "a", "parameters": [] } }]),
    ] {
        let wrong: Vec<Value> = serde_json::from_value(wrong).unwrap();
        assert_eq!(Tools::new(&tokenizer, wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let tools = Tools::new(&tokenizer, definitions()).unwrap();
    assert!(tools.clone().with_choice(ToolChoice::Named("other".to_owned())).is_err());
    assert!(Tools::new(&tokenizer, [] as [Tool; 0]).unwrap().with_choice(ToolChoice::Required).is_err());
    // A template without tools gets a system message.
    let mut messages = vec![Message::user("x")];
    tools.offer(&mut messages, &mut Options::new(1)).unwrap();
    assert!(messages[0].role == "system" && messages[0].content.contains("get_weather"));
    let none = tools.with_choice(ToolChoice::None).unwrap();
    let mut messages = vec![Message::user("x")];
    none.offer(&mut messages, &mut Options::new(1)).unwrap();
    assert_eq!(messages.len(), 1);
}

#[test]
fn offering_tools_does_not_replace_a_constraint() {
    for template in ["<tool_call>{{ tools }}", "{{ messages[0].content }}"] {
        let tokenizer = tokenizer(template, &[]);
        let tools = Tools::new(&tokenizer, definitions()).unwrap().with_choice(ToolChoice::Required).unwrap();
        let mut messages = vec![Message::user("x")];
        let mut options = Options::new(1).with_grammar(Grammar::regex("yes|no"));
        let error = tools.offer(&mut messages, &mut options).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("constraint")));
        assert!(messages.len() == 1 && options.chat == Default::default());
        let model = random_model(&tokenizer, 1);
        options.max_tokens = 9;
        let said = model.generate("x", &options).unwrap().complete().unwrap();
        assert!(["yes", "no"].contains(&said.text.as_str()), "{}", said.text);
    }
}
