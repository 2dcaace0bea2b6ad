//! Messages of calls and their results, and functions that a model calls.

use mlxcel_session::schemars::{self, JsonSchema};
use mlxcel_session::{ErrorKind, FinishReason, Message, Tool, ToolCall, ToolChoice, Toolbox, Tools};
use serde_json::{Value, json};

use crate::structured::harness::{hot, random_model};
use crate::structured::tools::tokenizer;
use crate::support::published_template;

/// Where the weather is asked for.
#[derive(Debug, JsonSchema, serde::Serialize, serde::Deserialize, PartialEq)]
struct Place {
    /// The name of a city.
    #[schemars(length(max = 8))]
    city: String,
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
        let tokenizer = tokenizer(&published_template(template), &[]);
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
    let tokenizer = tokenizer("<tool_call>{{ tools }}{{ messages | tojson }}", &[]);
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
        let model = random_model(&tokenizer, seed);
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
