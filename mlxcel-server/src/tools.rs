//! Tools as OpenAI's API has them.

use mlxcel_session::mlxcel_core::one_line;
use mlxcel_session::{ToolChoice, Tools};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::failure::ApiError;
use crate::served::ServedModel;

/// What a request says of tools.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ToolFields {
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
}

impl ToolFields {
    /// The tools; none where there are none, or none is to be called.
    pub(crate) fn tools(self, app: &ServedModel) -> Result<Option<Tools>, ApiError> {
        let mut definitions = self.tools.unwrap_or_default();
        definitions.iter_mut().for_each(drop_nulls);
        if definitions.len() > app.limits().tools {
            return Err(ApiError::invalid("tools", format!("at most {} tools", app.limits().tools)));
        }
        if let Some(other) = definitions.iter().find(|tool| tool["type"] != "function") {
            return Err(ApiError::unsupported("tools", &format!("a tool of type {}", other["type"])));
        }
        let choice = match (&self.tool_choice, self.tool_choice.as_ref().and_then(Value::as_str)) {
            (None | Some(Value::Null), _) | (_, Some("auto")) => ToolChoice::Auto,
            (_, Some("none")) => ToolChoice::None,
            (_, Some("required")) => ToolChoice::Required,
            (Some(Value::Object(choice)), _) => {
                let kind = choice.get("type").unwrap_or(&Value::Null);
                if kind != "function" {
                    let what = format!("a tool_choice of type {kind}");
                    return Err(ApiError::unsupported("tool_choice", &what));
                }
                match choice.get("function").and_then(|function| function["name"].as_str()) {
                    Some(name) => ToolChoice::Named(name.to_owned()),
                    None => return Err(ApiError::invalid("tool_choice", "tool_choice names no function")),
                }
            }
            _ => {
                let message = "tool_choice must be auto, none, required or a tool";
                return Err(ApiError::invalid("tool_choice", message));
            }
        };
        let wrong = |error: mlxcel_session::Error| ApiError::invalid("tools", one_line(&error));
        let tools = Tools::new(app.tokenizer()?, definitions).map_err(wrong)?;
        let tools = tools.with_parallel(self.parallel_tool_calls.unwrap_or(true));
        if tools.is_empty() && matches!(choice, ToolChoice::Auto | ToolChoice::None)
            || choice == ToolChoice::None
        {
            return Ok(None);
        }
        let wrong = |error: mlxcel_session::Error| ApiError::invalid("tool_choice", one_line(&error));
        Ok(Some(tools.with_choice(choice).map_err(wrong)?))
    }
}

/// Leaves out the fields of a tool that say nothing: templates may print every field that is there.
fn drop_nulls(tool: &mut Value) {
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        function.retain(|_, value| !value.is_null());
    }
}

/// Makes objects of the arguments of earlier calls, which clients send as texts and templates print as they
/// are.
pub(crate) fn read_arguments(extra: &mut Map<String, Value>) {
    let Some(calls) = extra.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let object =
            arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        if let Some(object) = object {
            *arguments = Value::Object(object);
        }
    }
}
