//! The content of messages.

use serde_json::Value;

use crate::failure::ApiError;

/// The text of content: a text itself, or the texts of a list of parts of these `kinds`.
///
/// # Errors
/// For other content, with its `path` in the request.
pub(crate) fn text_of(content: &Value, kinds: &[&str], path: &str) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let text = |(index, part)| text_of_part(part, kinds, &format!("{path}[{index}]"));
            parts.iter().enumerate().map(text).collect()
        }
        _ => Err(ApiError::invalid(path, format!("{path} must be a string or a list of parts"))),
    }
}

pub(crate) fn text_of_part<'p>(part: &'p Value, kinds: &[&str], path: &str) -> Result<&'p str, ApiError> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some(kind), Some(text)) if kinds.contains(&kind) => Ok(text),
        _ => Err(ApiError::unsupported(path, "content that is not text")),
    }
}
