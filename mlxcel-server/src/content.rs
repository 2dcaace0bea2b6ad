//! The content of messages.

use serde_json::Value;

use crate::failure::ApiError;

/// The text of content: a text itself, or the texts of a list of parts of these `kinds`.
///
/// # Errors
/// For other content, with the field `param`.
pub(crate) fn text_of(content: &Value, kinds: &[&str], param: &str) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| text_of_part(part, kinds, param)).collect(),
        _ => Err(ApiError::invalid(param, "content must be a text or a list of parts")),
    }
}

/// The text of one part.
pub(crate) fn text_of_part<'p>(part: &'p Value, kinds: &[&str], param: &str) -> Result<&'p str, ApiError> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some(kind), Some(text)) if kinds.contains(&kind) => Ok(text),
        _ => Err(ApiError::unsupported(param, "content that is not text")),
    }
}
