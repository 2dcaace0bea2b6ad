//! How much memory a model takes.

/// The memory that a model would take, in bytes, by [`Backend::estimate`](crate::Backend::estimate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// The weights. Engines map most of them from their files, so that the system may drop and read them
    /// again.
    pub weights: u64,
    /// The states (KV caches, and states of fixed size) of all sequences of one session, each at its full
    /// capacity. Engines allocate them as sequences grow.
    pub caches: u64,
    /// Intermediate results of the largest pass.
    pub scratch: u64,
    /// The [room for adapters](crate::LoadOptions::adapters), at its full rank.
    pub adapters: u64,
}

impl MemoryEstimate {
    /// An estimate without room for adapters.
    pub fn new(weights: u64, caches: u64, scratch: u64) -> Self {
        Self { weights, caches, scratch, adapters: 0 }
    }

    setters! {
        /// Sets the room for adapters.
        with_adapters(bytes: u64) => adapters = bytes;
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        let kept = self.weights.saturating_add(self.caches).saturating_add(self.adapters);
        kept.saturating_add(self.scratch)
    }
}
