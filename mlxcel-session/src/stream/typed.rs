//! Typed output: values of the application's own types.

use mlxcel_core::{Error, ErrorKind, FinishReason, Result};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::Completion;
use crate::model::Model;
use crate::options::Options;
use crate::prompt::Prompt;
use crate::structured::Grammar;

impl Completion {
    /// Parses the text as a `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the text is not the JSON of a `T`. The error includes the finish
    /// reason: [`FinishReason::Length`] usually means that the text is incomplete.
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
    /// Generates a value of the type `T` after `prompt`: constrains the text to the type's schema and parses
    /// it.
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
