//! Values of the application's own types.

use mlxcel_core::{Error, ErrorKind, FinishReason, Result};
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;

use super::Grammar;
use crate::{Completion, Model, Options, Prompt};

impl Grammar {
    /// JSON of the type `T`, by the schema that `schemars` derives for it.
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
        Self::json_schema(SchemaGenerator::default().into_root_schema_for::<T>())
    }
}

impl Completion {
    /// The value that its text says.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the text is not the JSON of a `T`, with the reason why it ended: one that ended as
    /// [`FinishReason::Length`] is the beginning of one, as a rule.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.text).map_err(|fault| {
            let reason = match self.finish_reason {
                FinishReason::Stop => "the text is no value of the type",
                _ => "the text ended before its value was whole; give it more tokens or more time",
            };
            Error::new(ErrorKind::InvalidInput, "parse answer", reason)
                .with_context("finish_reason", self.finish_reason.as_str())
                .with_source(fault)
        })
    }
}

impl Model {
    /// Generates a value of the type `T` after `prompt`: its schema limits the text, which is parsed then.
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
    /// Those of [`stream`](Self::stream), of the generation, and of [`Completion::parse`].
    pub fn generate_as<'a, T: JsonSchema + DeserializeOwned>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        options: &Options,
    ) -> Result<T> {
        let options = options.clone().with_grammar(Grammar::of_type::<T>());
        self.stream(prompt, &options)?.complete()?.parse()
    }
}
