//! Adapters of the reference engine: a number each, which every entry of a cache depends on.

use std::sync::atomic::{AtomicU64, Ordering};

use super::language::mix;
use crate::adapter::{Adapter, AdapterLimits, AdapterSlots};
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::load::ModelSource;

/// What the built-in adapters are called, before their number.
const PREFIX: &str = "adapter-";

/// The source of a built-in adapter.
pub(super) fn source(number: u64) -> ModelSource {
    ModelSource::BuiltIn(format!("{PREFIX}{number}"))
}

/// The slots of a model, with the number that each holds.
#[derive(Debug)]
pub(super) struct AdapterRoom {
    slots: AdapterSlots,
    numbers: Vec<AtomicU64>,
}

impl AdapterRoom {
    pub(super) fn new(limits: AdapterLimits) -> Self {
        let numbers = (0..limits.slots).map(|_| AtomicU64::new(0)).collect();
        Self { slots: AdapterSlots::new(limits), numbers }
    }

    /// Loads a built-in adapter.
    pub(super) fn load(&self, source: &ModelSource) -> Result<Adapter> {
        let number = match source {
            ModelSource::BuiltIn(name) => name.strip_prefix(PREFIX).and_then(|number| number.parse().ok()),
            _ => None,
        };
        let number: u64 = number.ok_or_else(|| {
            let message = "this engine has its own adapters, which `ReferenceBackend::adapter` names";
            Error::new(ErrorKind::NotFound, "load adapter", message)
        })?;
        // The adapter 0 changes nothing.
        let salt = if number == 0 { 0 } else { mix(number) };
        self.slots.load(format!("{PREFIX}{number}"), |slot| {
            self.numbers[slot].store(salt, Ordering::Relaxed);
            Ok(())
        })
    }
}

/// What entries depend on in sequences of a model with this room: nothing without an adapter.
pub(super) fn salt(
    room: Option<&AdapterRoom>,
    adapter: Option<&Adapter>,
    operation: &'static str,
) -> Result<u64> {
    match (room, adapter) {
        (_, None) => Ok(0),
        (Some(room), Some(adapter)) => Ok(room.numbers[room.slots.slot_of(adapter)?].load(Ordering::Relaxed)),
        (None, Some(_)) => Err(Capabilities::unclaimed(operation, "adapters")),
    }
}
