//! Typed output: values of the application's own types.

use mlxcel_core::{Error, ErrorKind, FinishReason, Result};
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Grammar, closed};
use crate::model::Model;
use crate::options::Options;
use crate::prompt::Prompt;
use crate::stream::Completion;

impl Grammar {
    /// JSON of the type `T`, by the schema that `schemars` derives for it, with closed objects: the model cannot invent
    /// fields that `T` does not have, at any depth.
    ///
    /// Maps keep their fields, and so do types with `#[schemars(extend("additionalProperties" = true))]`. To leave all
    /// objects open, use [`of_open_type`](Self::of_open_type).
    ///
    /// ```
    /// use mlxcel_session::{Grammar, Options};
    /// use mlxcel_session::schemars::{self, JsonSchema};
    ///
    /// #[derive(JsonSchema, serde::Deserialize)]
    /// struct Fox {
    ///     name: String,
    ///     age: u8,
    /// }
    ///
    /// let options = Options::new(100).with_grammar(Grammar::of_type::<Fox>());
    /// ```
    pub fn of_type<T: JsonSchema>() -> Self {
        Self::json_schema(closed_schema_of::<T>())
    }

    /// As [`of_type`](Self::of_type), by the schema as it is derived: where a type does not deny unknown fields, as with
    /// `#[serde(deny_unknown_fields)]`, the model may add any.
    pub fn of_open_type<T: JsonSchema>() -> Self {
        Self::json_schema(schema_of::<T>())
    }
}

/// The schema that `schemars` derives for `T`.
fn schema_of<T: JsonSchema>() -> Value {
    SchemaGenerator::default().into_root_schema_for::<T>().into()
}

/// The schema of `T` with closed objects.
pub(crate) fn closed_schema_of<T: JsonSchema>() -> Value {
    closed::close(schema_of::<T>())
}

impl Completion {
    /// Parses the text as a `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the text is not the JSON of a `T`. The error includes the finish reason:
    /// [`FinishReason::Length`] usually means that the text is incomplete.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text).map_err(|fault| {
            let reason = match self.finish_reason {
                FinishReason::Stop => "the text is not a value of the type",
                _ => "the text ended before the value was complete; raise the token or time limit",
            };
            Error::new(ErrorKind::InvalidInput, "parse answer", reason)
                .with_context("finish_reason", self.finish_reason.as_str())
                .with_source(fault)
        })
    }
}

impl Model {
    /// Generates a value of the type `T` after `prompt`: constrains the text to the type's schema and parses it.
    ///
    /// ```no_run
    /// use mlxcel_session::schemars::{self, JsonSchema};
    /// use mlxcel_session::{Message, Model, Options};
    ///
    /// #[derive(Debug, JsonSchema, serde::Deserialize)]
    /// struct Fox {
    ///     name: String,
    ///     friends: Vec<String>,
    /// }
    ///
    /// let model = Model::open("models/qwen3-0.6b")?;
    /// let question = [Message::user("Who is Pip the fox, and who are his friends?")];
    /// let fox: Fox = model.generate_as(&question, &Options::new(300))?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream), of the generation, and of [`Completion::parse`].
    pub fn generate_as<'a, T: JsonSchema + DeserializeOwned>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        options: &Options,
    ) -> Result<T> {
        let options = options.clone().with_grammar(Grammar::of_type::<T>());
        self.stream(prompt, &options)?.complete()?.parse()
    }
}
