//! The definition of a tool.

use serde_json::{Value, json};

/// A function that a model may call: its name, what it is for, and the JSON schema of its arguments.
///
/// ```
/// use mlxcel_session::Tool;
/// use serde_json::json;
///
/// let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
/// let weather = Tool::new("get_weather", "The current weather of a city", parameters);
/// assert_eq!(weather.name(), "get_weather");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tool(Value);

impl Tool {
    /// A tool whose arguments are an object of the JSON schema `parameters`. With the feature `structured`,
    /// an object in it that names `properties` and not `additionalProperties` has no fields but those, so
    /// that the model cannot invent any.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        let (name, description): (String, String) = (name.into(), description.into());
        Self(json!({
            "type": "function",
            "function": { "name": name, "description": description, "parameters": parameters }
        }))
    }

    /// A tool whose arguments are a value of the struct `Args`, by the schema that `schemars` derives for it.
    /// Its objects are closed, as in [`Grammar::of_type`](crate::Grammar::of_type). Comments of the
    /// fields describe them to the model. Read the arguments with
    /// [`ToolCall::parse`](crate::ToolCall::parse).
    ///
    /// ```
    /// use mlxcel_session::Tool;
    /// use mlxcel_session::schemars::{self, JsonSchema};
    ///
    /// #[derive(JsonSchema, serde::Deserialize)]
    /// struct Place {
    ///     /// The name of a city.
    ///     city: String,
    /// }
    ///
    /// let weather = Tool::of_type::<Place>("get_weather", "The current weather of a city");
    /// assert_eq!(weather.definition()["function"]["parameters"]["required"][0], "city");
    /// ```
    #[cfg(feature = "schemars")]
    pub fn of_type<Args: schemars::JsonSchema>(
        name: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        let mut parameters = crate::structured::closed_schema_of::<Args>();
        if let Some(fields) = parameters.as_object_mut() {
            // They tell a model nothing.
            fields.retain(|field, _| !["$schema", "title"].contains(&field.as_str()));
        }
        Self::new(name, description, parameters)
    }

    /// Its name; empty if the definition has none.
    pub fn name(&self) -> &str {
        self.0["function"]["name"].as_str().unwrap_or_default()
    }

    /// The definition in OpenAI's format, as chat templates read it.
    pub fn definition(&self) -> &Value {
        &self.0
    }
}

/// A definition in OpenAI's format, `{"type": "function", "function": {"name", "description",
/// "parameters"}}`. [`Tools::new`](crate::Tools::new) checks it.
impl From<Value> for Tool {
    fn from(definition: Value) -> Self {
        Self(definition)
    }
}
