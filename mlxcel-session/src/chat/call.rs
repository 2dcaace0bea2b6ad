//! Tool calls, as messages have them.

use mlxcel_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// Tells the calls of a conversation apart: nine letters and digits, which all families accept, or for Kimi,
    /// which renders ids alone, `functions.NAME:NUMBER`.
    pub id: String,
    /// The name of the tool, one of those offered.
    pub name: String,
    /// The arguments, a JSON object as text.
    pub arguments: String,
}

impl ToolCall {
    /// A call with an id of the application's, such as one read from a stored conversation.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: arguments.into() }
    }

    /// Parses the arguments as a `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if they are not a value of `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.arguments).map_err(|fault| {
            let reason = "the arguments are not a value of the type";
            Error::new(ErrorKind::InvalidInput, "parse tool call", reason)
                .with_context("tool", &self.name)
                .with_source(fault)
        })
    }

    /// The call in the format of messages, as chat templates read it.
    pub(super) fn to_json(&self) -> Value {
        let arguments: Value =
            serde_json::from_str(&self.arguments).unwrap_or_else(|_| Value::from(self.arguments.as_str()));
        serde_json::json!({
            "id": self.id, "type": "function", "function": { "name": self.name, "arguments": arguments }
        })
    }
}
