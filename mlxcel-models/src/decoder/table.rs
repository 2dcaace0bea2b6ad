//! The weights of a decoder, each once, found by index.

use std::collections::HashMap;

use super::WeightRef;
use crate::element::ElementType;

/// The index of a weight in a decoder's [`WeightTable`]: what the description holds instead of names, so that an engine
/// finds its own form of a weight without hashing anything in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(u32);

impl WeightId {
    /// The position in the table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The weights of a [`Decoder`](super::Decoder), each once, in the order of their first use.
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

    /// The index of `weight`, which is added unless it is there: two roles of one tensor, such as a tied head's, are one
    /// weight.
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

    /// The weight of an index of this table.
    ///
    /// # Panics
    ///
    /// With an index of another table that is longer.
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

    /// All weights in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, WeightRef> {
        self.weights.iter()
    }

    /// All weights in their order, each with its index.
    pub fn ids(&self) -> impl Iterator<Item = (WeightId, &WeightRef)> {
        (0..).map(WeightId).zip(&self.weights)
    }

    /// How many weights there are.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }
}
