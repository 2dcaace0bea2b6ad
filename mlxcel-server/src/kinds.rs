//! The types of fields, and what is wrong with a value, in the words of the APIs.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::failure::ApiError;

/// A field of a request or of an object in it.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    kind: Kind,
    pub(crate) is_required: bool,
}

/// The type of a value.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Checked by the code that reads it.
    Any,
    Text,
    Flag,
    /// An integer of at least 0.
    Count,
    Integer,
    Number,
    Token,
    /// One of these strings.
    Words(&'static [&'static str]),
    List(&'static Kind),
    /// An object whose fields have any names.
    Map(&'static Kind),
    /// An object with these fields, and maybe others.
    Object(&'static [Field]),
    Either(&'static [Kind]),
}

/// A value of [`Kind::Object`], and no list, of which structs are read too.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Map<String, Value>", bound = "T: DeserializeOwned")]
pub(crate) struct Object<T = Value>(pub(crate) T);

impl<T: DeserializeOwned> TryFrom<Map<String, Value>> for Object<T> {
    type Error = serde_json::Error;

    fn try_from(fields: Map<String, Value>) -> serde_json::Result<Self> {
        serde_json::from_value(fields.into()).map(Self)
    }
}

impl Field {
    /// A field that may be left out, or null.
    pub(crate) const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, is_required: false }
    }

    pub(crate) const fn required(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, is_required: true }
    }

    fn accepts(&self, object: &Map<String, Value>) -> bool {
        match object.get(self.name) {
            None | Some(Value::Null) => !self.is_required,
            Some(value) => self.kind.accepts(value),
        }
    }
}

/// The error of the first field of `object` that is missing or has a value of another type.
pub(crate) fn wrong_field(fields: &[Field], object: &Map<String, Value>) -> Option<ApiError> {
    wrong_part(fields, object, "")
}

/// The same for an object in a request; `prefix` begins the names of its fields.
fn wrong_part(fields: &[Field], object: &Map<String, Value>, prefix: &str) -> Option<ApiError> {
    let field = fields.iter().find(|field| !field.accepts(object))?;
    let path = format!("{prefix}{}", field.name);
    Some(match object.get(field.name) {
        None | Some(Value::Null) => {
            ApiError::invalid(&path, format!("{path} is required: {}", field.kind.words()))
        }
        Some(value) => field.kind.wrong(path, value),
    })
}

impl Kind {
    /// Fails for a value at `path` that is not of this type.
    pub(crate) fn check(self, value: &Value, path: &str) -> Result<(), ApiError> {
        if self.accepts(value) { Ok(()) } else { Err(self.wrong(path.to_owned(), value)) }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Text => value.is_string(),
            Self::Flag => value.is_boolean(),
            Self::Count => value.is_u64(),
            Self::Integer => value.is_i64(),
            Self::Number => value.is_number(),
            Self::Token => value.as_u64().is_some_and(|id| id <= u64::from(u32::MAX)),
            Self::Words(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Self::List(kind) => {
                value.as_array().is_some_and(|list| list.iter().all(|value| kind.accepts(value)))
            }
            Self::Map(kind) => {
                value.as_object().is_some_and(|map| map.values().all(|value| kind.accepts(value)))
            }
            Self::Object(fields) => {
                value.as_object().is_some_and(|object| fields.iter().all(|field| field.accepts(object)))
            }
            Self::Either(kinds) => kinds.iter().any(|kind| kind.accepts(value)),
        }
    }

    /// The error of the value at `path`, which is not of this type.
    fn wrong(self, path: String, value: &Value) -> ApiError {
        let part = match (self, value) {
            (Self::List(kind), Value::Array(list)) => {
                let wrong = list.iter().enumerate().find(|(_, value)| !kind.accepts(value));
                wrong.map(|(index, value)| kind.wrong(format!("{path}[{index}]"), value))
            }
            (Self::Object(fields), Value::Object(object)) => wrong_part(fields, object, &format!("{path}.")),
            _ => None,
        };
        part.unwrap_or_else(|| ApiError::invalid(&path, format!("{path} must be {}", self.words())))
    }

    fn words(self) -> String {
        match self {
            Self::Any => "a value".to_owned(),
            Self::Text => "a string".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Count => "an integer of at least 0".to_owned(),
            Self::Integer => "an integer of 64 bits".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Token => "a token id".to_owned(),
            Self::Words(words) => one_of(words.iter().map(|word| format!("{word:?}")).collect()),
            Self::List(kind) => format!("a list of {}", kind.plural()),
            Self::Map(kind) => format!("an object of {}", kind.plural()),
            Self::Object(fields) => match fields.iter().find(|field| field.is_required) {
                None => "an object".to_owned(),
                Some(field) => format!("an object with the field {}", field.name),
            },
            Self::Either(kinds) => one_of(kinds.iter().map(|kind| kind.words()).collect()),
        }
    }

    fn plural(self) -> String {
        match self {
            Self::Text => "strings".to_owned(),
            Self::Number => "numbers".to_owned(),
            Self::Token => "token ids".to_owned(),
            Self::List(kind) => format!("lists of {}", kind.plural()),
            Self::Map(_) | Self::Object(_) => "objects".to_owned(),
            Self::Either(kinds) => one_of(kinds.iter().map(|kind| kind.plural()).collect()),
            _ => "values".to_owned(),
        }
    }
}

/// `words` as a choice: `a, b or c`.
fn one_of(mut words: Vec<String>) -> String {
    match words.pop() {
        Some(last) if !words.is_empty() => format!("{} or {last}", words.join(", ")),
        last => last.unwrap_or_default(),
    }
}
