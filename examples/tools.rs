//! A chat in which the model calls a function of the program.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use mlxcel_session::{Message, Model, Options, Tool, ToolCall, ToolChoice, Toolbox, Tools};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(MODEL)?;
    let schema = json!({
        "type": "object", "properties": { "city": { "enum": ["Oslo", "Bergen"] } }, "required": ["city"],
        "additionalProperties": false,
    });
    let weather = Tool::new("get_weather", "The current weather of a city", schema);

    // A model that was trained on tools decides by itself: the toolbox offers, calls and asks again until
    // there is an answer.
    let mut toolbox = Toolbox::new().with_tool(weather.clone(), |call: &ToolCall| forecast(&call.arguments));
    let mut messages = vec![Message::user("Do I need an umbrella in Oslo?")];
    let answer = toolbox.chat(&model, &mut messages, &Options::new(60))?;
    writeln!(stdout(), "{}", answer.text)?;

    // Any other model can be made to call: the answer then follows the schema.
    let tools = Tools::new(model.tokenizer()?, vec![weather])?.with_choice(ToolChoice::Required)?;
    let (mut messages, mut options) = (vec![Message::user("Is it raining in Bergen?")], Options::new(60));
    tools.offer(&mut messages, &mut options)?;
    let text = model.chat(&messages, &options)?.complete()?.text;
    for call in tools.read(&text).1 {
        writeln!(stdout(), "{}({}) = {}", call.name, call.arguments, forecast(&call.arguments)?)?;
    }
    Ok(())
}

/// The function that the tool stands for.
fn forecast(arguments: &str) -> Result<String, serde_json::Error> {
    let arguments: Value = serde_json::from_str(arguments)?;
    Ok(format!("heavy rain in {}", arguments["city"]))
}
