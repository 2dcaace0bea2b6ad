//! Offers a tool, and calls it until the model answers: `tools MODEL`.
use mlxcel_session::{Message, Model, Options, Result, Tool, ToolCall, Toolbox};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let model = Model::open(std::env::args().nth(1).unwrap_or_default())?;
    let parameters =
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let weather = Tool::new("get_weather", "The weather of a city", parameters);
    let mut toolbox = Toolbox::new().with_tool(weather, |call: &ToolCall| {
        let arguments: Value = call.parse()?;
        Ok::<_, mlxcel_session::Error>(format!("It rains in {}.", arguments["city"]))
    });
    let call = ToolCall::new("1", "get_weather", r#"{"city": "Oslo"}"#);
    assert_eq!(toolbox.call(&call).content, "It rains in \"Oslo\".");

    let mut messages = vec![Message::user("Tell me a story about a fox named Pip.")];
    let answer = toolbox.chat(&model, &mut messages, &Options::new(20))?;
    println!("{} after {} messages", answer.text, messages.len());
    Ok(())
}
