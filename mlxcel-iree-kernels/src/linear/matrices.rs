//! Products of bfloat16 matrices: four inputs of two outputs times those of two rows; their four sums are one
//! vector.
//!
//! A panel has four outputs, so its units are two vectors: the first two outputs, and the last two. The sums
//! of two rows and a panel are two vectors too, `[row][output]` each, in place of the two rows' sums of other
//! products.

use super::format::Format;
use crate::value::{Operand, Type};
use crate::view::View;
use crate::writer::Writer;

/// Outputs, and rows, that are multiplied at a time.
const TWO: usize = 2;

impl Format {
    /// Vectors of a unit.
    pub(super) fn vectors(&self) -> usize {
        if self.in_matrices() { 2 } else { 1 }
    }

    /// Loads two steps from the element `at` of `weights` on, and makes their unit.
    pub(super) fn load_matrices(&self, w: &mut Writer, weights: &View, at: &Operand) -> [Operand; 2] {
        let behind = w.offset("at", at, self.lanes());
        let [first, second] = [at, &behind].map(|at| weights.load(w, "step", &[at], self.lanes()));
        [[0, 4, 1, 5], [2, 6, 3, 7]].map(|places| w.shuffle("unit", &first, &second, &places))
    }

    /// Adds to the `sums` of two rows the products of the units of some panels with the activations at `at`
    /// of `x`.
    pub(super) fn add_matrices(
        &self,
        w: &mut Writer,
        units: &[Operand],
        x: &View,
        at: &Operand,
        sums: &mut [Operand],
    ) {
        let halves = Type::vector(8, "bf16");
        let x = x.load(w, "x", &[at], TWO);
        let x = w.bitcast("rows", &x, halves);
        let panels = units.len() / 2;
        for (place, unit) in units.iter().enumerate() {
            let unit = w.bitcast("outputs", unit, halves);
            let sum = &mut sums[place % 2 * panels + place / 2];
            *sum = w.intrinsic("sum", "llvm.aarch64.neon.bfmmla", &[sum, &x, &unit], sum.ty);
        }
    }
}

/// Writes the sums of one row of a chunk, which begin at `group`, to the result from an output on.
pub(super) fn finish_row(
    w: &mut Writer,
    (sums, group): (&View, &Operand),
    row: &Operand,
    panels: usize,
    (out, [row_of_out, column]): (&View, [&Operand; 2]),
) {
    let lanes = 2 * TWO;
    let pair = w.divided("pair", row, TWO);
    let first = w.scaled("at", &pair, TWO * panels * lanes);
    let first = w.added("at", group, &first);
    let two = w.index(TWO);
    let in_pair = w.arith("in_pair", "remui", row, &two);
    let in_vector = w.scaled("at", &in_pair, TWO);
    let first = w.added("at", &first, &in_vector);
    for panel in 0..panels {
        for half in 0..2 {
            let at = w.offset("at", &first, (half * panels + panel) * lanes);
            let value = sums.load(w, "sum", &[&at], TWO);
            let column = w.offset("column", column, panel * lanes + half * TWO);
            out.store(w, &value, &[row_of_out, &column]);
        }
    }
}
