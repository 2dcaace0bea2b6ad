//! The room for adapters of a bundle.

use mlxcel_core::AdapterLimits;
use mlxcel_graph::ResidentArgument;
use serde::{Deserialize, Serialize};

use super::Tensor;

/// The room for adapters in the programs of a bundle, and the adapters in its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdapterRoom {
    /// The maximum number of loaded adapters.
    pub slots: usize,
    /// The maximum rank of an adapter.
    pub rank: usize,
    /// The tensors that adapters are in, in the order in which every program takes them.
    pub residents: Vec<Tensor>,
    /// The names of the adapters in the bundle, each in a folder of that name below `adapters`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub included: Vec<String>,
}

impl AdapterRoom {
    /// Room within `limits`, in these residents, and nothing included.
    pub fn new(limits: AdapterLimits, residents: &[ResidentArgument]) -> Self {
        let residents = residents.iter().map(|resident| Tensor::new(&resident.name, &resident.ty)).collect();
        Self { slots: limits.slots, rank: limits.rank, residents, included: Vec::new() }
    }

    /// The number of slots and the maximum rank.
    pub fn limits(&self) -> AdapterLimits {
        AdapterLimits::new(self.slots, self.rank)
    }

    /// Whether the numbers are such as a model may be loaded with.
    pub(super) fn is_in_range(&self) -> bool {
        (1..=AdapterLimits::MAX_SLOTS).contains(&self.slots)
            && (1..=AdapterLimits::MAX_RANK).contains(&self.rank)
    }
}
