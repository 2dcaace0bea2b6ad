//! What the state of a sequence belongs to.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::info::ModelInfo;
use crate::load::Precision;
use crate::sequence::SequenceOptions;

/// What the state of a sequence belongs to: a [`Snapshot`](crate::Snapshot), an entry of a prefix cache or a
/// saved conversation continues only where all of this is equal.
///
/// ```
/// use mlxcel_core::{ModelInfo, StateIdentity};
///
/// let mut info = ModelInfo::new("myengine", "llama", 128_256);
/// info.fingerprint = "3f2a".to_owned();
/// info.state_format = "kv/1 bf16".to_owned();
/// let identity = StateIdentity::of(&info).with_adapter("poems");
/// assert_eq!(identity.to_string(), "engine myengine, state kv/1 bf16, model 3f2a, precision native, adapter poems");
/// assert!(StateIdentity::of(&info).check(&identity).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct StateIdentity {
    /// The engine's name: [`ModelInfo::backend`].
    pub engine: String,
    /// The version of the engine's states, and what else their bytes depend on: [`ModelInfo::state_format`].
    pub state: String,
    /// The checkpoint's identity: [`ModelInfo::fingerprint`].
    pub model: String,
    /// The numeric precision that computed the state.
    pub precision: Precision,
    /// The identity of the adapter that computed the state: [`Adapter::identity`](crate::Adapter::identity).
    pub adapter: Option<String>,
}

impl StateIdentity {
    /// That of sequences of a model without an adapter.
    pub fn of(info: &ModelInfo) -> Self {
        Self {
            engine: info.backend.clone(),
            state: info.state_format.clone(),
            model: info.fingerprint.clone(),
            precision: info.precision,
            adapter: None,
        }
    }

    /// That of sequences of a model with these options.
    pub fn of_sequence(info: &ModelInfo, options: &SequenceOptions) -> Self {
        let adapter = options.adapter.as_ref().map(|adapter| adapter.identity().to_owned());
        Self { adapter, ..Self::of(info) }
    }

    setters! {
        /// Sets the adapter's identity.
        with_adapter(adapter: impl Into<String>) => adapter = Some(adapter.into());
    }

    /// Rejects a state that belongs to something else.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] with the name of the first field that differs as `field`, and both values.
    pub fn check(&self, found: &Self) -> Result<()> {
        for ((field, expected), (_, found)) in self.fields().into_iter().zip(found.fields()) {
            if found != expected {
                let message = "the state belongs to another engine, model, precision or adapter";
                return Err(Error::new(ErrorKind::InvalidInput, "restore", message)
                    .with_context("field", field)
                    .with_context("found", found.unwrap_or("none"))
                    .with_context("expected", expected.unwrap_or("none")));
            }
        }
        Ok(())
    }

    /// The fields by name, in the order of the text and of files.
    fn fields(&self) -> [(&'static str, Option<&str>); 5] {
        let Self { engine, state, model, precision, adapter } = self;
        [
            ("engine", Some(engine)),
            ("state", Some(state)),
            ("model", Some(model)),
            ("precision", Some(precision.as_str())),
            ("adapter", adapter.as_deref()),
        ]
    }
}

impl fmt::Display for StateIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, value) in self.fields() {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                write!(f, "{separator}{name} {value}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_an_identity_is_compared() {
        let own = StateIdentity::of(&ModelInfo::new("engine", "llama", 4));
        own.check(&own).unwrap();
        type Change = fn(&mut StateIdentity);
        let changes: [(&str, Change); 5] = [
            ("engine", |other| other.engine.push('x')),
            ("state", |other| other.state.push('x')),
            ("model", |other| other.model.push('x')),
            ("precision", |other| other.precision = Precision::Exact),
            ("adapter", |other| other.adapter = Some(String::new())),
        ];
        for (field, change) in changes {
            let mut other = own.clone();
            change(&mut other);
            assert_ne!(own, other);
            let error = own.check(&other).unwrap_err();
            assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
        }
    }
}
