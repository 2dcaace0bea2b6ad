//! Calls as the templates of styles render them: the parser reads them, and the grammar admits them.

use mlxcel_session::{ChatOptions, Message, ToolCall, ToolChoice, ToolPart, Tools};
use serde_json::{Value, json};

use crate::structured::harness::Chance;
use crate::structured::tools::{STYLES, calls, constraint, definitions, parse, text, tokenizer, tools_of};

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

/// Renders calls as the template of Gemma 4 does.
const GEMMA4: &str = r#"{%- macro literal(value) -%}
    {%- if value is string -%} {{ '<|"|>' ~ value ~ '<|"|>' }}
    {%- elif value is boolean -%} {{ 'true' if value else 'false' }}
    {%- elif value is mapping -%} {{ '{' }}
        {%- for name, item in value | dictsort -%} {{ name ~ ':' ~ literal(item) ~ ('' if loop.last else ',') }} {%- endfor -%}
        {{ '}' }}
    {%- elif value is sequence -%} {{ '[' }}
        {%- for item in value -%} {{ literal(item) ~ ('' if loop.last else ',') }} {%- endfor -%}
        {{ ']' }}
    {%- else -%} {{ value }}
    {%- endif -%}
{%- endmacro -%}
{%- for call in messages[-1].tool_calls -%}
    {{ '<|tool_call>call:' ~ call.function.name ~ literal(call.function.arguments) ~ '<tool_call|>' }}
{%- endfor -%}"#;

/// Renders calls as the template of LFM2.5 does.
const LFM2: &str = r#"{%- set made = namespace(calls=[]) -%}
{%- set begin = 'List of tools: ' if tools else '<|im_start|>' -%}
{%- for call in messages[-1].tool_calls -%}
    {%- set made.arguments = [] -%}
    {%- for name, value in call.function.arguments.items() -%}
        {%- set text = "'" ~ value ~ "'" if value is string else (value | tojson if value is mapping else value | string) -%}
        {%- set made.arguments = made.arguments + [name ~ '=' ~ text] -%}
    {%- endfor -%}
    {%- set made.calls = made.calls + [call.function.name ~ '(' ~ (made.arguments | join(', ')) ~ ')'] -%}
{%- endfor -%}
{{- '<|tool_call_start|>[' ~ (made.calls | join(', ')) ~ ']<|tool_call_end|>' -}}"#;

#[test]
fn calls_that_a_template_renders_are_read_back() {
    let arguments = json!({
        "text": "a, \"b\"\n(c) {d}: é", "count": -3, "digits": "007", "is": false, "no": null,
        "all": { "list": [1.5, "x", [], {}, true] }
    });
    let made = [ToolCall::new("a", "set", arguments.to_string()), ToolCall::new("b", "now", "{}")];
    for (style, template) in [("gemma4", GEMMA4), ("lfm2", LFM2)] {
        let tokenizer = tokenizer(template, &[]);
        let messages = [Message::calls(&made)];
        let said = tokenizer.chat_template().unwrap().render(&messages, &ChatOptions::default()).unwrap();
        let tools = Tools::new(&tokenizer, [typed(), definitions().swap_remove(1)]).unwrap();
        assert_eq!(tools.style(), style);
        let parts = parse(tools.parser(), &said, &mut Chance(1));
        let expected = [("set".to_owned(), arguments.clone()), ("now".to_owned(), json!({}))];
        assert_eq!((calls(&parts), text(&parts).as_str()), (expected.to_vec(), ""), "{said}");
    }
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
        "minimax-m3" => {
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"set\">]<]minimax[>[<text>a < b\n}]<]minimax[>[</text>]<]minimax[>[<count>-3]<]minimax[>[</count>]<]minimax[>[<digits>007]<]minimax[>[</digits>]<]minimax[>[<is>true]<]minimax[>[</is>]<]minimax[>[<unit>kelvin]<]minimax[>[</unit>]<]minimax[>[<no>null]<]minimax[>[</no>]<]minimax[>[<all>]<]minimax[>[<list>[1, \"]}\"]]<]minimax[>[</list>]<]minimax[>[</all>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
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
        "deepseek-v3.2" => {
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"set\">\n<｜DSML｜parameter name=\"text\" string=\"true\">a < b\n}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"count\" string=\"false\">-3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"digits\" string=\"true\">007</｜DSML｜parameter>\n<｜DSML｜parameter name=\"is\" string=\"false\">true</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">kelvin</｜DSML｜parameter>\n<｜DSML｜parameter name=\"no\" string=\"false\">null</｜DSML｜parameter>\n<｜DSML｜parameter name=\"all\" string=\"false\">{\"list\": [1, \"]}\"]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        }
        "deepseek-v4" => {
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"set\">\n<｜DSML｜parameter name=\"text\" string=\"true\">a < b\n}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"count\" string=\"false\">-3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"digits\" string=\"true\">007</｜DSML｜parameter>\n<｜DSML｜parameter name=\"is\" string=\"false\">true</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">kelvin</｜DSML｜parameter>\n<｜DSML｜parameter name=\"no\" string=\"false\">null</｜DSML｜parameter>\n<｜DSML｜parameter name=\"all\" string=\"false\">{\"list\": [1, \"]}\"]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        }
        "gemma4" => {
            "<|tool_call>call:set{all:{list:[1,<|\"|>]}<|\"|>]},count:-3,digits:<|\"|>007<|\"|>,is:true,no:None,text:<|\"|>a < b\n}<|\"|>,unit:<|\"|>kelvin<|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>"
        }
        "functiongemma" => {
            "<start_function_call>call:set{all:{list:[1,<escape>]}<escape>]},count:-3,digits:<escape>007<escape>,is:true,no:null,text:<escape>a < b\n}<escape>,unit:<escape>kelvin<escape>}<end_function_call><start_function_call>call:now{}<end_function_call>"
        }
        "lfm2" => {
            "<|tool_call_start|>[set(text='a < b\n}', count=-3, digits=\"007\", is=True, unit='kelvin', no=None, all={\"list\": [1, \"]}\"]}), now()]<|tool_call_end|>"
        }
        "olmo3" => {
            "<function_calls>set(text=\"a < b\\n}\", count=-3, digits=\"007\", is=true, unit=\"kelvin\", no=null, all={\"list\": [1, \"]}\"]})\nnow()</function_calls>"
        }
        "pythonic" => {
            "[set(text='a < b\\n}', count=-3, digits=\"007\", is=True, unit='kelvin', no=None, all={'list': [1, ']}']}), now()]"
        }
        "functionary" => {
            "<function=set>{\"text\": \"a < b\\n}\", \"count\": -3, \"digits\": \"007\", \"is\": true, \"unit\": \"kelvin\", \"no\": null, \"all\": {\"list\": [1, \"]}\"]}}</function><function=now>{}</function>"
        }
        "functionary-v3.2" => {
            "set\n{\"text\": \"a < b\\n}\", \"count\": -3, \"digits\": \"007\", \"is\": true, \"unit\": \"kelvin\", \"no\": null, \"all\": {\"list\": [1, \"]}\"]}}>>>now\n{}"
        }
        "firefunction" => {
            "functools[{\"name\": \"set\", \"arguments\": {\"text\": \"a < b\\n}\", \"count\": -3, \"digits\": \"007\", \"is\": true, \"unit\": \"kelvin\", \"no\": null, \"all\": {\"list\": [1, \"]}\"]}}}, {\"name\": \"now\", \"arguments\": {}}]"
        }
        _ => return None,
    })
}

#[test]
fn rendered_tool_calls_are_parsed_and_admitted_by_the_grammar() {
    let mut known = 0;
    for (style, template, special) in STYLES {
        let Some(said) = rendered(style) else { continue };
        let tokenizer = tokenizer(template, special);
        let tools = Tools::new(&tokenizer, [typed(), definitions().swap_remove(1)]).unwrap();
        let arguments = json!({
            "text": "a < b\n}", "count": -3, "digits": "007", "is": true, "unit": "kelvin", "no": null,
            "all": { "list": [1, "]}"] }
        });
        for size in [1, 2, 5, said.len()] {
            let mut parser = tools.parser();
            let pieces: Vec<char> = said.chars().collect();
            let mut parts: Vec<ToolPart> =
                pieces.chunks(size).flat_map(|piece| parser.push(&String::from_iter(piece))).collect();
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
        let tokens = tokenizer.encode(said, false).unwrap();
        for choice in [ToolChoice::Required, ToolChoice::Auto] {
            let tools = tools.clone().with_choice(choice).unwrap();
            // Nothing marks calls that are the whole answer.
            let Some(mut grammar) = constraint(&tools, &tokenizer, &[]) else { continue };
            for (at, token) in tokens.iter().enumerate() {
                let rest = || tokenizer.decode(&tokens[at..], false).unwrap();
                assert!(grammar.accept(*token).is_ok(), "{style}: not admitted is {}", rest());
            }
            assert!(grammar.is_complete() || grammar.mask().unwrap().allows(1), "{style}");
        }
        known += 1;
    }
    assert_eq!(known, 18);
}

#[test]
fn channels_may_call_a_tool_twice() {
    let (_, template, special) = STYLES[0];
    let tokenizer = tokenizer(template, special);
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
    for (template, said) in [
        ("<tool_call>{{ tools }}", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}"),
        ("<tool_call>{{ tools }}", "<tool_call>\n{\"name\": \"now\", \"arguments\": null}"),
        ("<tool_call>{{ tools }}", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool"),
        ("[TOOL_CALLS]{{ tools }}", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}"),
        ("<tool_call><function=<parameter={{ tools }}", "<tool_call>\n<function=now>\n</function>\n"),
    ] {
        let tools = Tools::new(&tokenizer(template, &[]), definitions()).unwrap();
        for seed in 0..8 {
            let parts = parse(tools.parser(), said, &mut Chance(seed));
            assert_eq!((calls(&parts).len(), text(&parts).as_str()), (1, ""), "{said}");
        }
    }
}

#[test]
fn a_broken_call_with_tagged_arguments_stays_text() {
    let tools = tools_of("qwen-coder", [typed()]);
    for said in [
        "<tool_call>\n<function=set>\n<parameter=text>\na",
        "<tool_call>\n<function=set>\n<parameter=text>\na\n</parameter>\n",
        "<tool_call>\n<function=set>\n<parameter=text>\na\n</parameter>\nAnd so on.",
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=set\n",
    ] {
        assert_eq!(text(&parse(tools.parser(), said, &mut Chance(1))), said);
    }
}

#[test]
fn keyword_arguments_are_read_as_models_write_them() {
    let read = |style: &str, said: &str| {
        let tools = tools_of(style, [typed()]);
        let parts = parse(tools.parser(), said, &mut Chance(said.len() as u64));
        (calls(&parts).into_iter().map(|(_, arguments)| arguments).collect::<Vec<_>>(), text(&parts))
    };
    for (style, said, arguments) in [
        ("pythonic", r"[set(text='it\'s \u00e9\ud83d\ude00 \q \x41')]", json!({ "text": r"it's é😀 \q A" })),
        (
            "pythonic",
            "[set(text=\"a, b=(c)\", count='-3', is=\"True\")]",
            json!({ "text": "a, b=(c)", "count": -3, "is": true }),
        ),
        ("pythonic", "[ set( text = '' , all = { } ) ]", json!({ "text": "", "all": {} })),
        (
            "functiongemma",
            "<start_function_call>call:set{text:<escape>a, {b<escape>,count:<escape>5<escape>}<end_function_call>",
            json!({ "text": "a, {b", "count": 5 }),
        ),
        (
            "gemma4",
            "<|tool_call>call:set{<|\"|>text<|\"|>: <|\"|><|tool_call>call:set{<|\"|>}<tool_call|>",
            json!({ "text": "<|tool_call>call:set{" }),
        ),
        (
            "gemma4",
            "<|tool_call>call:set{all:{list:[{a b:[]},-1.5e3]}}<tool_call|>",
            json!({ "all": { "list": [{ "a b": [] }, -1500.0] } }),
        ),
    ] {
        assert_eq!(read(style, said), (vec![arguments], String::new()), "{said}");
    }
    for (style, said) in [
        ("pythonic", "[set('a')]"),
        ("pythonic", "[set(text='a'"),
        ("pythonic", "[set(text=a)]"),
        ("pythonic", "[set(text='a' 'b')]"),
        ("pythonic", r"[set(text='\ud83d')]"),
        ("pythonic", r"[set(text='\ud83d\ud83d\ude00')]"),
        ("pythonic", r"[set(text='\x+1')]"),
        ("pythonic", "Look: [set(text='a')]"),
        ("lfm2", "<|tool_call_start|>[unknown(text='a')]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[set(text='a"),
        ("gemma4", "<|tool_call>call:set{text:Oslo}<tool_call|>"),
        ("gemma4", "<|tool_call>call:set{text:<|\"|>Oslo}<tool_call|>"),
        ("gemma4", "<|tool_call>call:set{text:<|\"|>Oslo<|\"|>]<tool_call|>"),
        ("gemma4", "<|tool_call>call:set{count:[}<tool_call|>"),
    ] {
        assert_eq!(read(style, said), (Vec::new(), said.to_owned()), "{said}");
    }
}
