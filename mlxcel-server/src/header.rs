//! What every message of an answer begins with.

use serde_json::{Value, json};

use crate::served::{ServedModel, unix_time};
use crate::usage::ApiUsage;

/// Which answer it is, of what sort.
#[derive(Clone)]
pub(crate) struct Header {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Header {
    /// Of a new answer; `prefix` begins its id.
    pub(crate) fn new(app: &ServedModel, prefix: &str, object: &'static str) -> Self {
        let id = format!("{prefix}-{}", app.server.ids.next());
        Self { id, object, created: unix_time(), model: app.name.clone() }
    }

    pub(crate) fn message(&self, choices: &[Value], usage: Option<ApiUsage>) -> Value {
        let Self { id, object, created, model } = self;
        json!({
            "id": id, "object": object, "created": created, "model": model, "choices": choices, "usage": usage,
        })
    }
}
