//! Adapters: low-rank changes of a model's weights, each for the sequences that ask for it.

/// The room for adapters in a model: fixed when it is loaded, so that programs are the same whatever adapters come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AdapterLimits {
    /// The maximum number of adapters that are loaded at the same time.
    pub slots: usize,
    /// The maximum rank of an adapter's matrices. Smaller ones are padded with zeros, which changes no result; memory
    /// and time are those of this rank.
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
}
