//! Adapters: low-rank changes of a model's weights, each for the sequences that ask for it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// The room for adapters in a model: fixed when it is loaded, so that programs are the same whatever adapters
/// come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AdapterLimits {
    /// The maximum number of adapters that are loaded at the same time.
    pub slots: usize,
    /// The maximum rank of an adapter's matrices. Smaller ones are padded with zeros, which changes no
    /// result; memory and time are those of this rank.
    pub rank: usize,
}

impl AdapterLimits {
    /// The maximum of [`slots`](Self::slots).
    pub const MAX_SLOTS: usize = 1024;
    /// The maximum of [`rank`](Self::rank).
    pub const MAX_RANK: usize = 1024;

    /// Room for `slots` adapters of up to `rank`.
    pub fn new(slots: usize, rank: usize) -> Self {
        Self { slots, rank }
    }

    /// The smaller of each limit.
    pub(crate) fn limited_to(self, most: Self) -> Self {
        Self::new(self.slots.min(most.slots), self.rank.min(most.rank))
    }
}

/// An adapter that [`Model::load_adapter`](crate::Model::load_adapter) loaded: a cheap handle.
///
/// It takes a slot of the model until the last clone is dropped. A sequence that was
/// [opened](crate::InferenceSession::open_with) with it holds a clone, so its adapter stays until it is
/// closed.
#[derive(Clone)]
pub struct Adapter(Arc<Loaded>);

struct Loaded {
    identity: String,
    slot: usize,
    slots: AdapterSlots,
}

impl Adapter {
    /// Identifies the adapter: equal only for equal weights and settings. Part of the
    /// [`StateIdentity`](crate::StateIdentity) of its sequences.
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Whether there are other handles of it, which sequences have too: if not, dropping this one frees its
    /// slot.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl PartialEq for Adapter {
    /// Whether both are the same loaded adapter.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Adapter {}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("identity", &self.0.identity).field("slot", &self.0.slot).finish()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Some(taken) = self.slots.lock().get_mut(self.slot) {
            *taken = false;
        }
    }
}

/// For engines: which of a model's slots for adapters are taken; clones are the same slots.
///
/// ```
/// use mlxcel_core::{AdapterLimits, AdapterSlots, ErrorKind};
///
/// let slots = AdapterSlots::new(AdapterLimits::new(1, 16));
/// let poems = slots.load("poems", |slot| Ok(assert_eq!(slot, 0)))?;
/// assert_eq!(slots.slot_of(&poems)?, 0);
/// assert_eq!(slots.load("laws", |_| Ok(())).unwrap_err().kind(), ErrorKind::CapacityExceeded);
/// drop(poems);
/// slots.load("laws", |_| Ok(()))?;
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdapterSlots {
    limits: AdapterLimits,
    taken: Arc<Mutex<Vec<bool>>>,
}

impl AdapterSlots {
    /// Free slots.
    pub fn new(limits: AdapterLimits) -> Self {
        Self { limits, taken: Arc::new(Mutex::new(vec![false; limits.slots])) }
    }

    /// The room for adapters.
    pub fn limits(&self) -> AdapterLimits {
        self.limits
    }

    /// Takes a free slot for the adapter with this identity, which `fill` writes into it. No sequence uses
    /// the slot meanwhile. After an error the slot is free again, and must be written whole before it is
    /// used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CapacityExceeded`] if all slots are taken, and those of `fill`.
    pub fn load(
        &self,
        identity: impl Into<String>,
        fill: impl FnOnce(usize) -> Result<()>,
    ) -> Result<Adapter> {
        // Those before the first free one are taken already.
        let free = self.lock().iter_mut().position(|taken| !std::mem::replace(taken, true));
        let Some(slot) = free else {
            let message = "all slots for adapters are taken; drop an adapter that no sequence needs, or load the \
                           model with room for more";
            return Err(Error::new(ErrorKind::CapacityExceeded, "load adapter", message)
                .with_context("slots", self.limits.slots));
        };
        let adapter = Adapter(Arc::new(Loaded { identity: identity.into(), slot, slots: self.clone() }));
        fill(slot)?;
        Ok(adapter)
    }

    /// The error for an adapter of a model that was loaded without room.
    pub fn no_room(operation: &'static str) -> Error {
        let message = "the model was loaded without room for adapters; set it in the load options";
        Error::unsupported(operation, message).with_context("capability", "adapters")
    }

    /// The slot of an adapter of this model.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an adapter of another model.
    pub fn slot_of(&self, adapter: &Adapter) -> Result<usize> {
        if Arc::ptr_eq(&adapter.0.slots.taken, &self.taken) {
            return Ok(adapter.0.slot);
        }
        let message = "the adapter was loaded into another model; load it into this one";
        Err(Error::new(ErrorKind::InvalidInput, "open sequence", message)
            .with_context("field", "adapter")
            .with_context("adapter", adapter.identity().escape_debug()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<bool>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_taken_until_the_last_clone_is_dropped() {
        let slots = AdapterSlots::new(AdapterLimits::new(2, 4));
        let load = |name: &str| slots.load(name, |_| Ok(()));
        let (first, second) = (load("a").unwrap(), load("b").unwrap());
        assert_eq!((slots.slot_of(&first).unwrap(), slots.slot_of(&second).unwrap()), (0, 1));
        let held = first.clone();
        assert_eq!((first == held, first == second, held.identity()), (true, false, "a"));
        assert!(first.is_shared() && !second.is_shared());
        drop(first);
        assert!(!held.is_shared());
        let error = load("c").unwrap_err();
        assert_eq!((error.kind(), error.context("slots")), (ErrorKind::CapacityExceeded, Some("2")));
        drop(held);
        assert_eq!(slots.slot_of(&load("c").unwrap()).unwrap(), 0);
    }

    #[test]
    fn a_slot_whose_filling_failed_is_free() {
        let slots = AdapterSlots::new(AdapterLimits::new(1, 4));
        let failed = slots.load("a", |_| Err(Error::new(ErrorKind::Device, "write", "no")));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Device);
        slots.load("b", |_| Ok(())).unwrap();
    }

    #[test]
    fn an_adapter_of_another_model_is_refused() {
        let [own, other] = [0, 1].map(|_| AdapterSlots::new(AdapterLimits::new(1, 4)));
        let adapter = other.load("a", |_| Ok(())).unwrap();
        let error = own.slot_of(&adapter).unwrap_err();
        assert_eq!((error.kind(), error.context("adapter")), (ErrorKind::InvalidInput, Some("a")));
    }
}
