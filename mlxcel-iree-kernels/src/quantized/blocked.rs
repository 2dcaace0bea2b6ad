//! The kernel for many rows: codes are unpacked once per block of rows and multiplied with tiles of it.

use super::buffers::Views;
use super::linear::{BLOCK, Chunk, Linear, Panels, unrolled};
use crate::value::Operand;
use crate::vector_set::VectorSet;
use crate::view::View;
use crate::writer::Writer;

/// The scratch memory of a workgroup for many rows.
pub(super) struct Scratch {
    /// `[panels, rows, lanes]` f32.
    totals: View,
    /// `[panels, units, lanes]`: the operands of a chunk.
    operands: View,
}

impl Linear {
    /// A workgroup's scratch memory for many rows.
    pub(super) fn scratch(&self, w: &mut Writer, panels: usize) -> Scratch {
        let product = &self.product;
        let (form, rows) = (&product.form, self.rows.min(BLOCK));
        let (units, word) = (product.units(), product.arithmetic.lane());
        let operands = [panels, units, form.lanes * product.vectors()];
        Scratch {
            totals: View::on_stack(w, "totals", &[panels, rows, form.lanes], "f32"),
            operands: View::on_stack(w, "operands", &operands, word),
        }
    }

    /// The outputs of some panels for `count` rows from `first`.
    ///
    /// Each chunk's codes are unpacked once and multiplied with all rows in tiles. Totals are kept in scratch
    /// memory between chunks: in the result their stride is so large that they evict each other from the
    /// cache.
    pub(super) fn block(
        &self,
        w: &mut Writer,
        views: &Views,
        panels: &Panels<'_>,
        scratch: &Scratch,
        first: &Operand,
        count: usize,
    ) {
        let product = &self.product;
        let form = &product.form;
        let numbers = Self::numbers(w, panels);
        let places: Vec<Operand> = (0..panels.count).map(|i| w.index(i)).collect();
        let [zero, one, rows] = [0, 1, count].map(|n| w.index(n));
        let nothing = w.constant("0.0", product.vector("f32"));
        w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
            for place in &places {
                scratch.totals.store(w, &nothing, &[place, row, &zero]);
            }
            Vec::new()
        });
        self.for_chunks(w, panels.count, &[], |w, chunk, _| {
            self.unpack_chunk(w, views, scratch, &numbers, chunk);
            let of_weights: Vec<_> =
                numbers.iter().map(|number| self.of_chunk(w, views, number, chunk)).collect();
            // Tiles of two sizes that differ by at most one row.
            let tiles = count.div_ceil(product.few());
            let (small, larger) = (count / tiles, count % tiles);
            for (from, to, size) in
                [(0, larger * (small + 1), small + 1), (larger * (small + 1), count, small)]
            {
                if from == to {
                    continue;
                }
                let [from, to, step] = [from, to, size].map(|n| w.index(n));
                w.for_loop("tile", [&from, &to, &step], &[], |w, tile, _| {
                    self.tile(w, views, scratch, &chunk.number, &of_weights, first, tile, size);
                    Vec::new()
                });
            }
            Vec::new()
        });
        let lanes = w.index(form.lanes);
        w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
            let at = w.arith("row", "addi", first, row);
            for (number, place) in numbers.iter().zip(&places) {
                let total = scratch.totals.load(w, "total", &[place, row, &zero], form.lanes);
                let output = w.arith("output", "muli", number, &lanes);
                views.out.store(w, &total, &[&at, &output]);
            }
            Vec::new()
        });
    }

    /// Unpacks a chunk's codes of some panels.
    fn unpack_chunk(
        &self,
        w: &mut Writer,
        views: &Views,
        scratch: &Scratch,
        panels: &[Operand],
        chunk: &Chunk,
    ) {
        let product = &self.product;
        let form = &product.form;
        let codes = self.codes(chunk);
        // At least as many units at a time as one product takes.
        let together = product.width().div_ceil(codes.len());
        let turns = form.chunk() / codes.len() / together;
        let [zero, one, size] = [0, 1, turns].map(|n| w.index(n));
        w.for_loop("unit", [&zero, &size, &one], &[], |w, turn, _| {
            let word = w.scaled("word", turn, form.unit_words() * together);
            let step_of_turn = w.scaled("step", turn, codes.len() * together / product.width());
            for (place, panel) in panels.iter().enumerate() {
                let place = w.index(place);
                let mut values = Vec::new();
                for unit in 0..together {
                    let words = self.unit(w, views, panel, chunk, &word, unit * form.unit_words());
                    values.extend(product.unpack(w, &words, codes.clone()));
                }
                let values = product.paired(w, values);
                for (step, values) in values.chunks(product.vectors()).enumerate() {
                    let at = w.offset("step", &step_of_turn, step);
                    for (part, value) in values.iter().enumerate() {
                        let part = w.index(part * form.lanes);
                        scratch.operands.store(w, value, &[&place, &at, &part]);
                    }
                }
            }
            Vec::new()
        });
    }

    /// Adds a chunk's products to the totals of `count` rows from `tile` on.
    #[allow(clippy::too_many_arguments, reason = "the indices of all enclosing loops")]
    fn tile(
        &self,
        w: &mut Writer,
        views: &Views,
        scratch: &Scratch,
        chunk: &Operand,
        of_weights: &[(Operand, Option<Operand>)],
        first: &Operand,
        tile: &Operand,
        count: usize,
    ) {
        let product = &self.product;
        let lanes = product.form.lanes;
        let units = product.units();
        let unroll = match product.instructions.set {
            // A fully unrolled chunk would need more registers than there are.
            VectorSet::Neon => unrolled(units, if product.matrices { 2 } else { 4 }),
            _ if units <= 8 => units,
            _ => unrolled(units, 4),
        };
        let (panels, planes) = (of_weights.len(), product.arithmetic.planes());
        let base = w.arith("row", "addi", first, tile);
        let rows: Vec<Operand> = (0..count).map(|m| w.offset("row", &base, m)).collect();
        let [zero, end, step] = [0, units, unroll].map(|n| w.index(n));
        let beginnings = vec![self.beginnings(w, views, chunk, &rows); panels].concat();
        let carried = if product.matrices {
            vec![product.nothing(w); panels * count.next_multiple_of(2) * planes]
        } else {
            beginnings.clone()
        };
        let mut sums = w.for_loop("unit", [&zero, &end, &step], &carried, |w, unit, sums| {
            let mut sums = sums.to_vec();
            for i in 0..unroll {
                let at = w.offset("unit", unit, i);
                let operands: Vec<Operand> = (0..panels * product.vectors())
                    .map(|place| {
                        let part = w.index(place % product.vectors() * lanes);
                        let place = w.index(place / product.vectors());
                        scratch.operands.load(w, "operand", &[&place, &at, &part], lanes)
                    })
                    .collect();
                if product.matrices {
                    product.add_matrices(w, &mut sums, &operands, &views.x, [chunk, &at], &rows);
                    continue;
                }
                for (m, row) in rows.iter().enumerate() {
                    for plane in 0..planes {
                        let place = w.index(plane);
                        let x = product.broadcast(w, &views.x, &[chunk, row, &at, &place]);
                        for (n, operand) in operands.iter().enumerate() {
                            let sum = &mut sums[(n * count + m) * planes + plane];
                            *sum = product.accumulate(w, sum, operand, &x);
                        }
                    }
                }
            }
            sums
        });
        if product.matrices {
            sums = product.sums_of_rows(w, &sums, panels, count);
            if product.subtracted().is_some() {
                for (sum, beginning) in sums.iter_mut().zip(&beginnings).skip(planes - 1).step_by(planes) {
                    *sum = w.arith("sum", "addi", sum, beginning);
                }
            }
        }
        for (m, row) in rows.iter().enumerate() {
            let of_x = product.of_activations(w, &views.meta, chunk, row);
            let place_of_row = w.offset("place", tile, m);
            for (n, of_weight) in of_weights.iter().enumerate() {
                let place = w.index(n);
                let at = [&place, &place_of_row, &zero];
                let total = scratch.totals.load(w, "total", &at, lanes);
                let sums = &sums[(n * count + m) * planes..][..planes];
                let total = product.add_chunk(w, &total, sums, of_weight, &of_x);
                scratch.totals.store(w, &total, &at);
            }
        }
    }
}
