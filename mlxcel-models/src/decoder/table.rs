//! The weights of a decoder, by index.

use std::collections::HashMap;

use super::WeightRef;
use crate::element::ElementType;

/// The index of a weight in a decoder's [`WeightTable`]. The description contains indices instead of names,
/// so that an engine finds its form of a weight without hashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(u32);

impl WeightId {
    /// The position in the table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The distinct weights of a [`Decoder`](super::Decoder), in the order of first use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightTable {
    weights: Vec<WeightRef>,
    known: HashMap<WeightRef, WeightId>,
}

impl WeightTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the id of `weight`, adding it if necessary. Two roles of one tensor, such as a tied head's,
    /// share one weight.
    pub fn add(&mut self, weight: WeightRef) -> WeightId {
        if let Some(&id) = self.known.get(&weight) {
            return id;
        }
        // A table of more weights would not fit into memory.
        let id = WeightId(u32::try_from(self.weights.len()).unwrap_or(u32::MAX));
        self.known.insert(weight.clone(), id);
        self.weights.push(weight);
        id
    }

    /// The weight with this id.
    ///
    /// # Panics
    ///
    /// If `id` is out of range, and thus from another table.
    pub fn get(&self, id: WeightId) -> &WeightRef {
        &self.weights[id.index()]
    }

    /// Says that a weight's values are elements of this type, and not packed.
    pub(super) fn expand(&mut self, id: WeightId, element: ElementType) {
        if let Some(weight) = self.weights.get_mut(id.index()) {
            self.known.remove(weight);
            (weight.element, weight.packed) = (element, None);
            self.known.insert(weight.clone(), id);
        }
    }

    /// All weights in order.
    pub fn iter(&self) -> std::slice::Iter<'_, WeightRef> {
        self.weights.iter()
    }

    /// All weights in order, with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (WeightId, &WeightRef)> {
        (0..).map(WeightId).zip(&self.weights)
    }

    /// The number of weights.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }
}
