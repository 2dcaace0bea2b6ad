//! Products of matrices of bytes: eight inputs of two outputs times those of two rows; their four sums are
//! one vector.
//!
//! A panel has four outputs, so it has two vectors of operands and two of sums. If the number of rows is odd,
//! the last row is computed twice.

use super::product::Product;
use crate::value::Operand;
use crate::view::View;
use crate::writer::Writer;

impl Product {
    /// The operand vectors of a panel per activation load.
    pub(super) fn vectors(&self) -> usize {
        if self.matrices { 2 } else { 1 }
    }

    /// Operands as they are multiplied: unchanged, or, for matrices, those of two steps as two vectors of
    /// outputs.
    pub(super) fn paired(&self, w: &mut Writer, operands: Vec<Operand>) -> Vec<Operand> {
        if !self.matrices {
            return operands;
        }
        let mut outputs =
            |steps: &[Operand], places: [usize; 4]| w.shuffle("outputs", &steps[0], &steps[1], &places);
        let pairs = operands.chunks_exact(2);
        pairs.flat_map(|steps| [outputs(steps, [0, 4, 1, 5]), outputs(steps, [2, 6, 3, 7])]).collect()
    }

    /// Adds to `sums` the products of `operands`, two of each panel, with the activations of `rows` at
    /// `[chunk, unit]` of `x`.
    ///
    /// There is a sum for each of the operands, pairs of rows, and planes.
    pub(super) fn add_matrices(
        &self,
        w: &mut Writer,
        sums: &mut [Operand],
        operands: &[Operand],
        x: &View,
        [chunk, unit]: [&Operand; 2],
        rows: &[Operand],
    ) {
        let (planes, pairs) = (self.arithmetic.planes(), rows.len().div_ceil(2));
        for (pair, rows) in rows.chunks(2).enumerate() {
            for plane in 0..planes {
                let place = w.index(plane);
                let both =
                    [0, rows.len() - 1].map(|row| x.element(w, "x", &[chunk, &rows[row], unit, &place]));
                let x = w.elements("x", &both);
                for (place, operand) in operands.iter().enumerate() {
                    let sum = &mut sums[(place * pairs + pair) * planes + plane];
                    *sum = self.add_products(w, sum, operand, &x);
                }
            }
        }
    }

    /// Splits the `sums` of matrices: per panel, for each of `rows` rows, a sum per plane with all outputs.
    pub(super) fn sums_of_rows(
        &self,
        w: &mut Writer,
        sums: &[Operand],
        panels: usize,
        rows: usize,
    ) -> Vec<Operand> {
        let (planes, pairs) = (self.arithmetic.planes(), rows.div_ceil(2));
        let mut of_rows = Vec::with_capacity(panels * rows * planes);
        for panel in 0..panels {
            for row in 0..rows {
                for plane in 0..planes {
                    let [first, second] = [0, 1].map(|half| {
                        let place = panel * self.vectors() + half;
                        &sums[(place * pairs + row / 2) * planes + plane]
                    });
                    let places = [0, 2, 4, 6].map(|place| place + row % 2);
                    of_rows.push(w.shuffle("sum", first, second, &places));
                }
            }
        }
        of_rows
    }
}
