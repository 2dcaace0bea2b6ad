//! Tool calls: the parser returns what the grammar of a style admits, without loss.

use std::path::Path;
use std::sync::Arc;

use mlxcel_session::schemars::{self, JsonSchema};
use mlxcel_session::{
    ErrorKind, FinishReason, Grammar, Message, Model, Options, ReasoningSplitter, Tokenizer, Tool, ToolCall,
    ToolChoice, ToolParser, ToolPart, Toolbox, Tools,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::structured::harness::{Chance, Random, hot, storyteller};
use crate::support::Replay;

/// A template with the text of a style's published templates, and its special tokens.
const STYLES: [(&str, &str, &[&str]); 20] = [
    ("gpt-oss", "<|channel|><|message|>{{ tools }}", &["<|channel|>", "<|constrain|>", "<|message|>"]),
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
    ("minimax", "<minimax:tool_call><invoke name={{ tools }}", &["<minimax:tool_call>"]),
    ("seed", "<seed:tool_call><function={{ tools }}", &["<seed:tool_call>"]),
    ("qwen-coder", "<tool_call><function=<parameter={{ tools }}", &[]),
    ("glm", "<tool_call><arg_key><arg_value>{{ tools }}", &["<tool_call>", "</arg_value>"]),
    ("llama3", "<|start_header_id|>{{ tools }}", &[]),
    ("gemma", "<start_of_turn>", &[]),
    ("generic", "{{ messages[0].content }}", &[]),
];

/// The bundled tokenizer with a template, and with further special tokens.
fn tokenizer(folder: &Path, template: &str, special: &[&str]) -> Tokenizer {
    let mut file: Value =
        serde_json::from_slice(&std::fs::read(storyteller().join("tokenizer.json")).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (number, token) in special.iter().enumerate() {
        added.push(json!({
            "id": 729 + number, "content": token, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        }));
    }
    std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    std::fs::copy(storyteller().join("tokenizer_config.json"), folder.join("tokenizer_config.json")).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    Tokenizer::open(folder).unwrap()
}

fn weather() -> Value {
    json!({ "type": "function", "function": { "name": "get_weather", "description": "The weather", "parameters": {
        "type": "object",
        "properties": { "city": { "type": "string", "maxLength": 8 }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city"]
    }}})
}

fn definitions() -> Vec<Value> {
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
    let folder = tempfile::tempdir().unwrap();
    let (_, template, special) = STYLES[6];
    let tools = Tools::new(&tokenizer(folder.path(), template, special), definitions()).unwrap();
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
fn parse(mut parser: ToolParser, text: &str, chance: &mut Chance) -> Vec<ToolPart> {
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

fn calls(parts: &[ToolPart]) -> Vec<(String, Value)> {
    let call = |part: &_| match part {
        ToolPart::Call(call) => Some((call.name.clone(), serde_json::from_str(&call.arguments).unwrap())),
        _ => None,
    };
    parts.iter().filter_map(call).collect()
}

fn text(parts: &[ToolPart]) -> String {
    parts
        .iter()
        .filter_map(|part| if let ToolPart::Text(text) = part { Some(text.as_str()) } else { None })
        .collect()
}

/// What a model of random logits answers where tools are offered.
fn answer(tools: &Tools, tokenizer: &Tokenizer, seed: u64) -> (String, Option<FinishReason>) {
    let mut messages = vec![Message::user("x")];
    let mut options = hot(600, seed);
    tools.offer(&mut messages, &mut options).unwrap();
    options.skip_special_tokens = true;
    let said =
        Random::new(tokenizer, seed).model(tokenizer).generate("x", &options).unwrap().complete().unwrap();
    (said.text, Some(said.finish_reason))
}

/// Parameters that are combined of parts, each of which names some of the fields.
#[test]
fn combined_parameters_can_be_satisfied() {
    let part = |field: &str| json!({ "type": "object", "properties": { field: { "type": "integer" } }, "required": [field] });
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(folder.path(), "<tool_call>{{ tools }}", &[]);
    for parameters in [
        json!({ "allOf": [part("a"), part("b")] }),
        json!({ "allOf": [{ "$ref": "#/$defs/a" }, part("b")], "$defs": { "a": part("a") } }),
        json!({ "$ref": "#/$defs/a", "properties": { "b": {} }, "required": ["b"], "$defs": { "a": part("a") } }),
    ] {
        let function = json!({ "type": "function", "function": { "name": "add", "parameters": parameters } });
        let tools = Tools::new(&tokenizer, [function]).unwrap().with_choice(ToolChoice::Required).unwrap();
        let mut options = hot(4, 1);
        tools.offer(&mut vec![Message::user("x")], &mut options).unwrap();
        let model = Random::new(&tokenizer, 1).model(&tokenizer);
        model.generate("x", &options).unwrap().complete().unwrap();
    }
}

#[test]
fn tool_calls_admitted_by_a_grammar_are_parsed() {
    for (style, template, special) in STYLES {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(folder.path(), template, special);
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
            if calls(&parts).is_empty() && style != "gpt-oss" {
                assert_eq!(text(&parts), said, "{style}");
            }
        }
        assert!(whole >= 12, "{style}: {whole} are whole");
    }
}

#[test]
fn published_tool_calls_are_parsed() {
    let arguments = r#"{"city": "Oslo"}"#;
    for (style, said, before) in [
        (
            "hermes",
            format!(
                "I look.\n<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {arguments}}}\n</tool_call>"
            ),
            "I look.\n",
        ),
        (
            "hermes",
            format!(
                "<tool_call>{{\"arguments\":{arguments},\"name\":\"get_weather\"}}</tool_call>\n<tool_call>{{\"name\":\"now\",\"arguments\":{{}}}}</tool_call>"
            ),
            "",
        ),
        ("llama3", format!("{{\"name\": \"get_weather\", \"parameters\": {arguments}}}"), ""),
        (
            "mistral",
            format!(
                "[TOOL_CALLS] [{{\"name\": \"get_weather\", \"arguments\": {arguments}, \"id\": \"abc\"}}]"
            ),
            "",
        ),
        (
            "mistral-arguments",
            format!("[TOOL_CALLS]get_weather[ARGS]{arguments}[TOOL_CALLS]now[ARGS]{{}}"),
            "",
        ),
        ("granite", format!("<|tool_call|>[{{\"name\": \"get_weather\", \"arguments\": {arguments}}}]"), ""),
        (
            "deepseek-v3",
            format!(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            "",
        ),
        (
            "deepseek-v3.1",
            format!(
                "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            "Let me see.",
        ),
        (
            "gpt-oss",
            format!(
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{arguments}"
            ),
            "",
        ),
        ("mistral-arguments", format!("[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{arguments}"), ""),
        ("llama3", format!("{{\"name\": \"get_weather\", \"arguments\": {arguments}}}"), ""),
        (
            "command",
            format!(
                "<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {arguments}}}\n]<|END_ACTION|>"
            ),
            "",
        ),
        (
            "tool-calls",
            format!(
                "I look.<tool_calls>[{{\"name\": \"get_weather\", \"arguments\": {arguments}, \"id\": \"a\"}}]</tool_calls>"
            ),
            "I look.",
        ),
        (
            "longcat",
            format!(
                "<longcat_tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {arguments}}}\n</longcat_tool_call>"
            ),
            "",
        ),
        (
            "gemma",
            format!("```tool_call\n{{\"name\": \"get_weather\", \"parameters\": {arguments}}}\n```"),
            "",
        ),
    ] {
        let (_, template, special) = STYLES.into_iter().find(|(name, ..)| *name == style).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tools = Tools::new(&tokenizer(folder.path(), template, special), definitions()).unwrap();
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

/// A tool with arguments of all types.
fn typed() -> Value {
    json!({ "type": "function", "function": { "name": "set", "parameters": {
        "type": "object",
        "properties": {
            "text": { "type": "string" },
            "count": { "type": "integer" },
            "digits": { "type": "string", "maxLength": 3 },
            "is": { "type": "boolean" },
            "unit": { "enum": ["kelvin", "celsius"] },
            "no": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            "all": { "$ref": "#/$defs/all" },
            "same": { "$ref": "#/properties/count" }
        },
        "required": ["text"],
        "$defs": { "all": { "type": "object", "properties": { "list": { "type": "array" } } } }
    }}})
}

/// Two calls, of `set` and of `now`, as the templates of a style render them.
fn rendered(style: &str) -> Option<&'static str> {
    Some(match style {
        "kimi" => {
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.set:4<|tool_call_argument_begin|>{\"text\": \"a < b\\n}\", \"count\": -3, \"digits\": \"007\", \"is\": true, \"unit\": \"kelvin\", \"no\": null, \"all\": {\"list\": [1, \"]}\"]}}<|tool_call_end|><|tool_call_begin|>functions.now:5<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
        }
        "nemotron" => {
            "<TOOLCALL>[{\"name\": \"set\", \"arguments\": {\"text\": \"a < b\\n}\", \"count\": -3, \"digits\": \"007\", \"is\": true, \"unit\": \"kelvin\", \"no\": null, \"all\": {\"list\": [1, \"]}\"]}}}, {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>"
        }
        "minicpm" => {
            "<function name=\"set\"><param name=\"text\">a < b\n}</param><param name=\"count\">-3</param><param name=\"digits\">007</param><param name=\"is\">true</param><param name=\"unit\">kelvin</param><param name=\"no\">null</param><param name=\"all\">{\"list\": [1, \"]}\"]}</param></function>\n<function name=\"now\"></function>"
        }
        "minimax" => {
            "<minimax:tool_call>\n<invoke name=\"set\">\n<parameter name=\"text\">a < b\n}</parameter>\n<parameter name=\"count\">-3</parameter>\n<parameter name=\"digits\">007</parameter>\n<parameter name=\"is\">true</parameter>\n<parameter name=\"unit\">kelvin</parameter>\n<parameter name=\"no\">null</parameter>\n<parameter name=\"all\">{\"list\": [1, \"]}\"]}</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>"
        }
        "seed" => {
            "<seed:tool_call>\n<function=set>\n<parameter=text>a < b\n}</parameter>\n<parameter=count>-3</parameter>\n<parameter=digits>007</parameter>\n<parameter=is>true</parameter>\n<parameter=unit>kelvin</parameter>\n<parameter=no>null</parameter>\n<parameter=all>{\"list\": [1, \"]}\"]}</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>"
        }
        "qwen-coder" => {
            "<tool_call>\n<function=set>\n<parameter=text>\na < b\n}\n</parameter>\n<parameter=count>\n-3\n</parameter>\n<parameter=digits>\n007\n</parameter>\n<parameter=is>\ntrue\n</parameter>\n<parameter=unit>\nkelvin\n</parameter>\n<parameter=no>\nnull\n</parameter>\n<parameter=all>\n{\"list\": [1, \"]}\"]}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
        }
        "glm" => {
            "<tool_call>set\n<arg_key>text</arg_key>\n<arg_value>a < b\n}</arg_value>\n<arg_key>count</arg_key>\n<arg_value>-3</arg_value>\n<arg_key>digits</arg_key>\n<arg_value>007</arg_value>\n<arg_key>is</arg_key><arg_value>true</arg_value><arg_key>unit</arg_key><arg_value>kelvin</arg_value><arg_key>no</arg_key><arg_value>null</arg_value>\n<arg_key>all</arg_key>\n<arg_value>{\"list\": [1, \"]}\"]}</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
        }
        _ => return None,
    })
}

#[test]
fn rendered_tool_calls_are_parsed_and_admitted_by_the_grammar() {
    let mut known = 0;
    for (style, template, special) in STYLES {
        let Some(said) = rendered(style) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(folder.path(), template, special);
        let tools = Tools::new(&tokenizer, [typed(), definitions().swap_remove(1)]).unwrap();
        let arguments = json!({
            "text": "a < b\n}", "count": -3, "digits": "007", "is": true, "unit": "kelvin", "no": null,
            "all": { "list": [1, "]}"] }
        });
        for size in [1, 2, 5, said.len()] {
            let mut parser = tools.parser();
            let mut parts: Vec<ToolPart> = said
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| parser.push(str::from_utf8(piece).unwrap()))
                .collect();
            parts.extend(parser.finish());
            assert_eq!(
                calls(&parts),
                [("set".to_owned(), arguments.clone()), ("now".to_owned(), json!({}))],
                "{style}"
            );
            assert_eq!(text(&parts).trim(), "", "{style}");
            let id = parts
                .iter()
                .find_map(|part| if let ToolPart::Call(call) = part { Some(call.id.as_str()) } else { None });
            assert_eq!(style == "kimi", id == Some("functions.set:4"), "{id:?}");
        }
        let mut engine = Replay::new(Vec::new());
        engine.info.vocabulary_size = tokenizer.vocabulary_size();
        let tokens = tokenizer.encode(said, false).unwrap();
        let model = Model::from_parts(Arc::new(engine), tokenizer);
        for choice in [ToolChoice::Required, ToolChoice::Auto] {
            let mut options = Options::default();
            let tools = tools.clone().with_choice(choice).unwrap();
            tools.offer(&mut vec![Message::user("x")], &mut options).unwrap();
            let mut grammar = options.constraint.unwrap().start(&model).unwrap();
            for (at, token) in tokens.iter().enumerate() {
                let rest = || model.tokenizer().unwrap().decode(&tokens[at..], false).unwrap();
                assert!(grammar.accept(*token).is_ok(), "{style}: not admitted is {}", rest());
            }
            assert!(grammar.is_complete() || grammar.mask().unwrap().allows(1), "{style}");
        }
        known += 1;
    }
    assert_eq!(known, 7);
}

#[test]
fn channels_may_call_a_tool_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (_, template, special) = STYLES[0];
    let tokenizer = tokenizer(folder.path(), template, special);
    let tools = Tools::new(&tokenizer, definitions()).unwrap();
    let call = |city: &str| {
        format!(
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{{\"city\": \"{city}\"}}<|call|>"
        )
    };
    let said = format!("{}<|start|>assistant{}", call("Oslo"), call("Rome"));
    for seed in 0..8 {
        let parts = parse(tools.parser(), &said, &mut Chance(seed));
        let cities: Vec<_> =
            calls(&parts).into_iter().map(|(_, arguments)| arguments["city"].clone()).collect();
        assert_eq!((cities, text(&parts).as_str()), (vec![json!("Oslo"), json!("Rome")], ""));
    }
    let mut splitter = tokenizer.reasoning().unwrap().splitter();
    let message = Message::of_parts(splitter.push(&said));
    assert_eq!(message.extra["tool_calls"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_last_call_may_lack_its_end() {
    let folder = tempfile::tempdir().unwrap();
    for (template, said) in [
        ("<tool_call>{{ tools }}", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}"),
        ("<tool_call>{{ tools }}", "<tool_call>\n{\"name\": \"now\", \"arguments\": null}"),
        ("<tool_call>{{ tools }}", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool"),
        ("[TOOL_CALLS]{{ tools }}", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}"),
        ("<tool_call><function=<parameter={{ tools }}", "<tool_call>\n<function=now>\n</function>\n"),
    ] {
        let tools = Tools::new(&tokenizer(folder.path(), template, &[]), definitions()).unwrap();
        for seed in 0..8 {
            let parts = parse(tools.parser(), said, &mut Chance(seed));
            assert_eq!((calls(&parts).len(), text(&parts).as_str()), (1, ""), "{said}");
        }
    }
}

#[test]
fn a_broken_call_with_tagged_arguments_stays_text() {
    let folder = tempfile::tempdir().unwrap();
    let (_, template, special) = STYLES.into_iter().find(|(name, ..)| *name == "qwen-coder").unwrap();
    let tools = Tools::new(&tokenizer(folder.path(), template, special), [typed()]).unwrap();
    for said in [
        "<tool_call>\n<function=set>\n<parameter=text>\na",
        "<tool_call>\n<function=set>\n<parameter=text>\na\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=set\n",
    ] {
        assert_eq!(text(&parse(tools.parser(), said, &mut Chance(1))), said);
    }
}

#[test]
fn text_that_is_not_a_call_stays_text() {
    let folder = tempfile::tempdir().unwrap();
    let tools = Tools::new(&tokenizer(folder.path(), "<tool_call>{{ tools }}", &[]), definitions()).unwrap();
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
    let llama =
        Tools::new(&tokenizer(folder.path(), "<|start_header_id|>{{ tools }}", &[]), definitions()).unwrap();
    for said in
        ["{\"a\": 1}", "  {", "{}{}", "{\"name\": \"now\"}", "Text {\"name\": \"now\", \"parameters\": {}}"]
    {
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
        let folder = tempfile::tempdir().unwrap();
        let (_, template, special) = STYLES[style];
        let tools = Tools::new(&tokenizer(folder.path(), template, special), definitions()).unwrap();
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
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat_templates");
    for (file, style) in [
        ("qwen3", "hermes"),
        ("llama3", "llama3"),
        ("mistral", "mistral"),
        ("granite", "granite"),
        ("gemma3", "gemma"),
        ("gpt_oss", "gpt-oss"),
        ("chatml", "generic"),
    ] {
        let template = std::fs::read_to_string(fixtures.join(format!("{file}.jinja"))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tools = Tools::new(&tokenizer(folder.path(), &template, &[]), definitions()).unwrap();
        assert_eq!(tools.style(), style, "{file}");
    }
}

#[test]
fn invalid_tools_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(folder.path(), "{{ tools }}", &[]);
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

/// Where the weather is asked for.
#[derive(Debug, JsonSchema, serde::Serialize, serde::Deserialize, PartialEq)]
struct Place {
    /// The name of a city.
    #[schemars(length(max = 8))]
    city: String,
}

fn published(template: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat_templates");
    std::fs::read_to_string(fixtures.join(format!("{template}.jinja"))).unwrap()
}

#[test]
fn calls_and_their_results_become_messages() {
    for (template, said) in [
        (
            "qwen3",
            "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
        ),
        (
            "mistral",
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(folder.path(), &published(template), &[]);
        let tools = Tools::new(&tokenizer, [Tool::of_type::<Place>("weather", "The weather")]).unwrap();
        let (message, calls) = tools.read(said);
        assert_eq!(calls.len(), 2, "{template}: {message:?}");
        let oslo = Place { city: "Oslo".to_owned() };
        assert!(calls.iter().all(|call| call.parse::<Place>().unwrap() == oslo), "{calls:?}");
        assert_eq!(calls[0].parse::<Vec<u8>>().unwrap_err().kind(), ErrorKind::InvalidInput);
        let again = tools.read(said).1;
        let mut ids: Vec<_> = calls.iter().chain(&again).map(|call| call.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() == 4 && ids.iter().all(|id| id.len() == 9), "{ids:?}");
        if template == "qwen3" {
            assert_eq!(
                (message.content.as_str(), &message.extra["reasoning_content"]),
                ("I look.", &json!("Hm."))
            );
        }
        let mut messages = vec![Message::user("Umbrella?"), message];
        messages.extend(calls.iter().map(|call| Message::tool_result(call, "heavy rain")));
        let prompt = tokenizer.chat_template().unwrap().render(&messages, &Default::default()).unwrap();
        assert_eq!(
            (prompt.matches("heavy rain").count(), prompt.matches("Oslo").count()),
            (2, 2),
            "{prompt}"
        );
    }
}

#[test]
fn a_toolbox_calls_functions_until_the_model_answers() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(folder.path(), "<tool_call>{{ tools }}{{ messages | tojson }}", &[]);
    let mut whole = 0;
    for seed in 0..8 {
        let mut asked = Vec::new();
        let weather = |place: Place| {
            asked.push(place.city);
            if asked.len() == 1 { Err("no such city") } else { Ok("rain") }
        };
        let mut toolbox = Toolbox::new()
            .with_function("weather", "The weather", weather)
            .with_choice(ToolChoice::Required)
            .with_rounds(2);
        let mut messages = vec![Message::user("x")];
        let model = Random::new(&tokenizer, seed).model(&tokenizer);
        let answer = toolbox.chat(&model, &mut messages, &hot(200, seed)).unwrap();
        drop(toolbox);
        let called: Vec<&Message> =
            messages.iter().filter(|message| message.extra.contains_key("tool_calls")).collect();
        let calls: Vec<&Value> =
            called.iter().flat_map(|message| message.extra["tool_calls"].as_array().unwrap()).collect();
        assert!(called.len() <= 2 && messages.last().unwrap().role == "assistant", "{messages:?}");
        if answer.finish_reason == FinishReason::Stop && !calls.is_empty() {
            let results: Vec<&Message> = messages.iter().filter(|message| message.role == "tool").collect();
            assert_eq!((calls.len(), results.len()), (asked.len(), asked.len()));
            for ((call, result), city) in calls.iter().zip(&results).zip(&asked) {
                assert_eq!(call["function"]["arguments"]["city"], json!(city));
                assert_eq!(result.extra["tool_call_id"], call["id"]);
            }
            assert_eq!(results[0].content, r#"{"error":"no such city"}"#);
            assert!(results[1..].iter().all(|result| result.content == "\"rain\""));
            whole += 1;
        }
    }
    assert!(whole >= 4, "{whole} are whole");
}

#[test]
fn wrong_arguments_and_unknown_tools_are_told_to_the_model() {
    let mut toolbox = Toolbox::new()
        .with_function("weather", "The weather", |place: Place| -> Result<String, String> { Ok(place.city) })
        .with_tool(Tool::new("now", "The time", json!({})), |_: &ToolCall| {
            Ok::<_, String>("noon".to_owned())
        });
    let mut said = |name, arguments| toolbox.call(&ToolCall::new("1", name, arguments)).content;
    assert_eq!(said("now", "{}"), "noon");
    assert_eq!(said("weather", r#"{"city": "Oslo"}"#), "\"Oslo\"");
    for wrong in [said("weather", r#"{"town": "Oslo"}"#), said("other", "{}")] {
        let wrong: Value = serde_json::from_str(&wrong).unwrap();
        assert!(wrong["error"].as_str().is_some_and(|error| !error.is_empty()), "{wrong}");
    }
}

#[test]
fn offering_tools_does_not_replace_a_constraint() {
    for template in ["<tool_call>{{ tools }}", "{{ messages[0].content }}"] {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(folder.path(), template, &[]);
        let tools = Tools::new(&tokenizer, definitions()).unwrap().with_choice(ToolChoice::Required).unwrap();
        let mut messages = vec![Message::user("x")];
        let mut options = Options::new(1).with_grammar(Grammar::regex("yes|no"));
        let error = tools.offer(&mut messages, &mut options).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("constraint")));
        assert!(messages.len() == 1 && options.chat == Default::default());
        let model = Random::new(&tokenizer, 1).model(&tokenizer);
        options.max_tokens = 9;
        let said = model.generate("x", &options).unwrap().complete().unwrap();
        assert!(["yes", "no"].contains(&said.text.as_str()), "{}", said.text);
    }
}
