//! Grammars of the application's own types.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use super::{Grammar, closed};

impl Grammar {
    /// JSON of the type `T`, by the schema that `schemars` derives for it, with closed objects: the model
    /// cannot invent fields that `T` does not have, at any depth.
    ///
    /// Maps keep their fields, and so do types with `#[schemars(extend("additionalProperties" = true))]`. To
    /// leave all objects open, use [`of_open_type`](Self::of_open_type).
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

    /// As [`of_type`](Self::of_type), by the schema as it is derived: where a type does not deny unknown
    /// fields, as with `#[serde(deny_unknown_fields)]`, the model may add any.
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
