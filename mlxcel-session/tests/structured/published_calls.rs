//! Calls of families that nest elements, name recipients, or write what their templates do not ask for.

use std::time::Duration;

use mlxcel_session::{ChatOptions, ChatTemplate, Message, ToolCall, Tools};
use serde_json::{Value, json};

use crate::structured::harness::Chance;
use crate::structured::tools::{calls, definitions, parse, text, tokenizer, tools_of};
use crate::support::cpu_time;

/// The calls and the text of `said` by the parser of a style, the same for any pieces.
fn read(style: &str, tools: Vec<Value>, said: &str) -> (Vec<(String, Value)>, String) {
    let tools = tools_of(style, tools);
    let found = |seed| {
        let parts = parse(tools.parser(), said, &mut Chance(seed));
        (calls(&parts), text(&parts))
    };
    let first = found(0);
    for seed in 1..16 {
        assert_eq!(found(seed), first, "{said}");
    }
    first
}

fn order() -> Value {
    json!({ "type": "function", "function": { "name": "order", "parameters": {
        "type": "object",
        "properties": {
            "user": { "type": "integer" },
            "note": { "type": "string" },
            "to": { "$ref": "#/$defs/address" },
            "items": { "type": "array", "items": { "anyOf": [
                { "type": "object", "properties": { "sku": { "type": "string" }, "number": { "type": "integer" } } },
                { "type": "null" }
            ] } },
            "tags": { "type": ["array", "null"], "items": { "type": "string" } },
            "more": { "type": "object", "additionalProperties": { "type": "number" } },
            "empty": { "type": "object" },
            "id": { "type": ["integer", "string"] },
            "any": {}
        },
        "$defs": { "address": { "type": "object", "properties": {
            "city": { "type": "string" },
            "next": { "$ref": "#/$defs/address" }
        } } }
    }}})
}

/// Renders a call as the template of MiniMax M3 does.
fn elements(value: &Value) -> String {
    let within =
        |name: &str, value: &Value| format!("]<]minimax[>[<{name}>{}]<]minimax[>[</{name}>", elements(value));
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| within(name, value)).collect(),
        Value::Array(items) => items.iter().map(|item| within("item", item)).collect(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn minimax(arguments: &str) -> String {
    format!(
        "Yes.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"order\">{arguments}]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
    )
}

#[test]
fn nested_elements_become_values_of_the_schemas_types() {
    let arguments = json!({
        "user": 42, "note": "<b>\n{1}", "to": { "city": "12", "next": { "city": "true", "next": {} } },
        "items": [{ "sku": "007", "number": 2 }, { "sku": "x", "number": -5 }], "tags": ["1", "b"],
        "more": { "a": 1.5, "b": 2 }, "empty": {}, "any": ["a", ["b", "c"]]
    });
    let said = minimax(&elements(&arguments));
    let (calls, text) = read("minimax-m3", vec![order()], &said);
    assert_eq!((calls, text.as_str()), (vec![("order".to_owned(), arguments)], "Yes."));
    for (written, expected) in [
        (json!({ "items": [], "tags": [], "note": "" }), json!({ "items": [], "tags": [], "note": "" })),
        (json!({ "more": "{\"a\": 1}", "items": "[null]" }), json!({ "more": { "a": 1 }, "items": [null] })),
        (json!({ "id": u64::MAX }), json!({ "id": u64::MAX })),
    ] {
        let (calls, _) = read("minimax-m3", vec![order()], &minimax(&elements(&written)));
        assert_eq!(calls, [("order".to_owned(), expected)]);
    }
    // Space between elements, and one that is there twice, as vLLM reads it.
    let twice = minimax(
        "\n]<]minimax[>[<empty> \n]<]minimax[>[<tag>a]<]minimax[>[</tag>\n]<]minimax[>[<tag>b]<]minimax[>[</tag>]<]minimax[>[</empty>\n",
    );
    let expected = json!({ "empty": { "tag": ["a", "b"] } });
    assert_eq!(read("minimax-m3", vec![order()], &twice).0, [("order".to_owned(), expected)]);
}

#[test]
fn broken_elements_are_text() {
    let deep = "]<]minimax[>[<a>".repeat(200) + &"]<]minimax[>[</a>".repeat(200);
    for arguments in [
        "]<]minimax[>[<user>42",
        "]<]minimax[>[<user>42]<]minimax[>[</note>",
        "]<]minimax[>[</user>",
        "]<]minimax[>[<to>x]<]minimax[>[<city>y]<]minimax[>[</city>]<]minimax[>[</to>",
        "]<]minimax[>[user>42]<]minimax[>[</user>",
        "words",
        &deep,
    ] {
        let said = minimax(arguments);
        assert_eq!(read("minimax-m3", vec![order()], &said), (Vec::new(), said.clone()));
    }
}

#[test]
fn an_answer_of_minimax_m3_may_decide_against_reasoning() {
    let tokenizer = tokenizer(
        "{{ ']<]minimax[>[' }}<mm:think></mm:think>{{ messages[0].reasoning_content }}{{ tools }}",
        &[],
    );
    let tools = Tools::new(&tokenizer, [order()]).unwrap();
    for (said, reasoning) in [("</mm:think>", None), ("<mm:think>Hm.</mm:think>", Some("Hm."))] {
        let (message, calls) = tools.read(&(said.to_owned() + &minimax("")));
        assert_eq!((message.content.as_str(), calls.len()), ("Yes.", 1));
        let thought = message.extra.get("reasoning_content").and_then(Value::as_str);
        assert_eq!(thought, reasoning);
    }
}

#[test]
fn recipients_are_told_from_the_answer() {
    let city = ("get_weather".to_owned(), json!({ "city": "Oslo" }));
    let now = ("now".to_owned(), json!({}));
    for (said, expected, before) in [
        ("all\nIt rains.", vec![], "It rains."),
        ("all\n", vec![], ""),
        ("get_weather\n{\"city\": \"Oslo\"}", vec![city.clone()], ""),
        ("now\n{}>>>get_weather\n{\"city\": \"Oslo\"}", vec![now.clone(), city], ""),
        ("all\nI look.>>>now\n{}", vec![now], "I look."),
        ("all\n>>> now\n>>>>>>> end", vec![], ">>> now\n>>>>>>> end"),
        ("python\nprint(1)", vec![], ">>>python\nprint(1)"),
        ("all of it", vec![], ">>>all of it"),
    ] {
        assert_eq!(read("functionary-v3.2", definitions(), said), (expected, before.to_owned()), "{said}");
    }
}

#[test]
fn an_answer_that_continues_has_no_recipient() {
    let source = "{% for m in messages %}>>>all\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}>>>{% endif %}";
    let tokenizer = tokenizer(source, &[]);
    let go_on = ChatOptions::default().with_continue_final_message(true);
    for (options, said) in [(ChatOptions::default(), "b"), (go_on, "all\nb")] {
        let prompt = tokenizer.encode_chat(&[Message::assistant("a")], &options).unwrap();
        let mut splitter = tokenizer.reasoning().unwrap().splitter_after(&tokenizer, &prompt).unwrap();
        let message = Message::of_parts(splitter.push("all\nb"));
        assert_eq!(message.content, said);
    }
}

#[test]
fn templates_that_print_text_get_arguments_as_text() {
    let source = "{% for m in messages %}{% for call in m.tool_calls %}{{ '>>>all' ~ call.function.name + call.function.arguments }}{% endfor %}{% endfor %}";
    let call = ToolCall::new("a", "now", "{\"a\": [1, \"ü\"]}");
    let rendered = ChatTemplate::new(source).unwrap().render(&[Message::calls([&call])], &Default::default());
    assert_eq!(rendered.unwrap(), ">>>allnow{\"a\":[1,\"ü\"]}");
}

#[test]
fn llama_writes_several_calls() {
    let call = |name: &str| format!("{{\"name\": \"{name}\", \"parameters\": {{}}}}");
    let now = ("now".to_owned(), json!({}));
    for style in ["llama3", "llama4"] {
        for (said, count, behind) in [
            (call("now"), 1, ""),
            (format!("{}; {}", call("now"), call("now")), 2, ""),
            (format!("<|python_tag|>{} ;\n{};{}", call("now"), call("now"), call("now")), 3, ""),
            // As the template for Llama 4 renders them.
            (format!("{}{}", call("now"), call("now")), 2, ""),
            (format!("{};", call("now")), 1, ""),
            (
                format!("{}; {}", call("now"), call("unknown")),
                1,
                "{\"name\": \"unknown\", \"parameters\": {}}",
            ),
        ] {
            let (calls, text) = read(style, definitions(), &said);
            assert_eq!((calls, text.trim()), (vec![now.clone(); count], behind), "{said}");
        }
    }
}

#[test]
fn a_template_of_single_calls_renders_several() {
    let source = "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}{{ m.content }}<{{ m.tool_calls[0].function.name }}>{% else %}{{ m.content }}{% endif %}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| ToolCall::new(name, name, "{}"));
    let mut both = Message::calls([&a, &b]);
    both.content = "Both.".to_owned();
    let result = Message::tool_result;
    for (messages, expected) in [
        (
            vec![both.clone(), result(&b, "2"), result(&a, "1"), Message::user("Go on.")],
            "Both.<a>1<b>2Go on.",
        ),
        (vec![both.clone(), Message::new("tool", "1"), Message::new("tool", "2")], "Both.<a>1<b>2"),
        (vec![both.clone(), result(&c, "3")], "Both.<a><b>3"),
        (vec![both.clone()], "Both.<a><b>"),
        (vec![Message::calls([&c]), result(&c, "3")], "<c>3"),
    ] {
        assert_eq!(template.render(&messages, &Default::default()).unwrap(), expected);
    }
}

#[test]
fn arguments_that_are_nested_too_deep_are_text() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    let object = format!("{{\"a\": {deep}}}");
    let quoted = Value::from(&*object);
    let channel = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>";
    for (style, said, text) in [
        ("functionary", format!("<function=now>{object}</function>"), None),
        ("hermes", format!("<tool_call>{{\"name\": \"now\", \"arguments\": {quoted}}}</tool_call>"), None),
        ("gpt-oss", format!("{channel}{object}<|call|>"), Some(object)),
    ] {
        assert_eq!(read(style, definitions(), &said), (Vec::new(), text.unwrap_or(said.clone())), "{style}");
    }
    let tag = "｜DSML｜";
    let said = format!(
        "<{tag}tool_calls><{tag}invoke name=\"now\"><{tag}parameter name=\"a\" \
         string=\"false\">{deep}</{tag}parameter></{tag}invoke></{tag}tool_calls>"
    );
    assert_eq!(read("deepseek-v4", definitions(), &said).0, [("now".to_owned(), json!({ "a": deep }))]);
}

#[test]
fn a_message_of_many_calls_is_split_soon() {
    let source =
        "{% for m in messages %}{{ m.tool_calls is defined }}{% endfor %}only supports single tool-calls";
    let calls: Vec<ToolCall> = (0..5000).map(|n| ToolCall::new(n.to_string(), "a", "{}")).collect();
    let results = calls.iter().rev().map(|call| Message::tool_result(call, "1"));
    let messages: Vec<Message> = std::iter::once(Message::calls(&calls)).chain(results).collect();
    let start = cpu_time();
    let rendered = ChatTemplate::new(source).unwrap().render(&messages, &Default::default()).unwrap();
    assert_eq!(rendered.matches("True").count(), 5000);
    assert!(cpu_time() - start < Duration::from_secs(4), "{:?}", cpu_time() - start);
}

/// They are read at once, and have many marks of one kind and none of another.
#[test]
fn long_answers_are_read_in_linear_time() {
    let fields: Vec<String> = (0..100_000).map(|number| format!("a{number}=1")).collect();
    for (style, said, count) in [
        ("qwen-coder", "<function=é>".repeat(100_000), 0),
        ("qwen-coder", format!("<function=now>\n{}</function>", "<parameter=a>\nb\n".repeat(60_000)), 1),
        ("pythonic", format!("[now({})]", fields.join(", ")), 1),
    ] {
        let tools = tools_of(style, definitions());
        let start = cpu_time();
        assert_eq!(tools.read(&said).1.len(), count, "{style}");
        assert!(cpu_time() - start < Duration::from_secs(4), "{style}: {:?}", cpu_time() - start);
    }
}

#[test]
fn qwen_coder_leaves_out_the_opening_tag() {
    let call = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>";
    for (text, calls, said) in [
        (format!("I look.\n{call}\n</tool_call>"), 1, "I look.\n"),
        (call.to_owned(), 1, ""),
        (format!("{call}\n{call}"), 2, ""),
        (format!("<tool_call>\n{call}\n</tool_call>\n{call}"), 2, ""),
        (format!("{call}\nAnd so on."), 1, "\nAnd so on."),
        ("<function=unknown>\n</function>".to_owned(), 0, "<function=unknown>\n</function>"),
        ("Write <function=é>.".to_owned(), 0, "Write <function=é>."),
    ] {
        let expected = vec![("get_weather".to_owned(), json!({ "city": "Oslo" })); calls];
        assert_eq!(read("qwen-coder", definitions(), &text), (expected, said.to_owned()), "{text}");
    }
}

#[test]
fn qwen_coder_leaves_out_closing_tags() {
    let said = |body: &str| format!("I look.\n<tool_call>\n<function=get_weather>\n{body}");
    for (body, days, behind) in [
        ("<parameter=city>\nOslo\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>", true, ""),
        ("<parameter=city>\nOslo\n</function>\n</tool_call>", false, ""),
        ("<parameter=city>\nOslo\n<parameter=days>\n2\n</function>\n", true, ""),
        ("<parameter=city>\nOslo\n</parameter>\n</tool_call>", false, ""),
        ("<parameter=city>\nOslo\n</parameter>\n</function>\n\nAnd so on.", false, "\n\nAnd so on."),
    ] {
        let mut arguments = json!({ "city": "Oslo" });
        if days {
            arguments["days"] = 2.into();
        }
        let expected = (vec![("get_weather".to_owned(), arguments)], format!("I look.\n{behind}"));
        assert_eq!(read("qwen-coder", definitions(), &said(body)), expected, "{body}");
    }
    // Another call follows.
    let next = said(
        "<parameter=city>\nOslo\n</parameter>\n</function>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    );
    assert_eq!(read("qwen-coder", definitions(), &next).0.len(), 2);
    // A tag within a line is of the text.
    let within = said("<parameter=city>\na <parameter=b>\n</parameter>\n</function>\n</tool_call>");
    assert_eq!(read("qwen-coder", definitions(), &within).0[0].1, json!({ "city": "a <parameter=b>" }));
}
