//! Adapters: low-rank products beside those with the weights, each row's by its own slot.

use std::collections::HashMap;

use mlxcel_models::{Linear, WeightId};
use mlxcel_stablehlo::{ElementType, Result, Value};

use super::GraphOps;
use crate::layers;
use crate::resident::Resident;

/// The residents that adapters lie in, and which row uses which; empty for a model without room for adapters.
#[derive(Default)]
pub(crate) struct Adapters<'f> {
    /// `[rows]` i32: the slot of each row's adapter, negative without one.
    slots: Option<Value<'f>>,
    matrices: HashMap<Resident, Value<'f>>,
}

impl<'f> Adapters<'f> {
    /// No matrices yet, for rows with these `slots`.
    pub(crate) fn new(slots: Option<Value<'f>>) -> Self {
        Self { slots, matrices: HashMap::new() }
    }

    /// Adds the argument that is this resident.
    pub(crate) fn add(&mut self, content: Resident, value: Value<'f>) {
        self.matrices.insert(content, value);
    }

    /// The slots of rows, and the matrices beside a weight.
    fn of(&self, weight: WeightId) -> Option<(Value<'f>, [Value<'f>; 2])> {
        let matrix = |content| self.matrices.get(&content).copied();
        let matrices = [matrix(Resident::AdapterA(weight))?, matrix(Resident::AdapterB(weight))?];
        Some((self.slots?, matrices))
    }
}

impl<'f> GraphOps<'_, '_, 'f> {
    /// `y`, the product of `x` with the weight of `linear`, plus that with the adapter of each row: `B (A
    /// x)`. Rows without an adapter stay as they are.
    pub(super) fn adapt(&mut self, y: Value<'f>, x: Value<'f>, linear: &Linear) -> Result<Value<'f>> {
        let Some((slots, [first, second])) = self.adapters.of(linear.weight) else { return Ok(y) };
        let [tokens, inputs] = [0, 1].map(|axis| self.b.shape(x)[axis]);
        // The tokens of a row stand together, or the last of each row is left.
        let rows = if tokens == self.tokens() { self.pass.rows.to_vec() } else { vec![1; tokens] };
        let operand = self.b.ty(first).element;
        let x = self.b.convert(x, operand)?;
        let (mut row, mut token) = (0, 0);
        let mut parts = Vec::new();
        for run in rows.chunk_by(|a, b| a == b) {
            let (count, size) = (run.len(), run[0]);
            let part = self.b.slice(x, &[token, 0], &[token + count * size, inputs])?;
            let part = self.b.reshape(part, &[count, size, inputs])?;
            let slots = self.b.slice(slots, &[row], &[row + count])?;
            let narrow = layers::expert_linear(self.b, part, first, slots, None, ElementType::F32)?;
            let narrow = self.b.convert(narrow, operand)?;
            let wide = layers::expert_linear(self.b, narrow, second, slots, None, ElementType::F32)?;
            parts.push(self.b.reshape(wide, &[count * size, linear.outputs])?);
            (row, token) = (row + count, token + count * size);
        }
        let added = layers::join_rows(self.b, &parts)?;
        self.b.add(y, added)
    }
}
