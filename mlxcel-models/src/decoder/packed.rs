//! Packings with the tensors of their parts.

use serde::{Deserialize, Serialize};

use super::WeightRef;
use crate::packing::{Packing, Part};

/// A packing with its tensors, for a weight whose own tensor contains the codes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Packed {
    /// The packing.
    pub packing: Packing,
    /// The parts other than the codes, in the order of [`Packing::parts`].
    pub parts: Vec<WeightRef>,
}

impl Packed {
    /// A packing with its parts other than the codes.
    pub fn new(packing: Packing, parts: impl Into<Vec<WeightRef>>) -> Self {
        Self { packing, parts: parts.into() }
    }

    /// The parts other than the codes, each with its kind.
    pub fn named(&self) -> impl Iterator<Item = (Part, &WeightRef)> {
        self.packing.parts().skip(1).zip(&self.parts)
    }

    /// Changes each part that has rows of its own.
    pub(crate) fn with_rows(&mut self, change: impl Fn(WeightRef) -> WeightRef) {
        for (part, weight) in self.packing.parts().skip(1).zip(&mut self.parts) {
            if part != Part::Order {
                *weight = change(weight.clone());
            }
        }
    }
}
