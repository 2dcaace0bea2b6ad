//! The kernels of a linear layer over a packed weight: common parts, and the kernel for few rows.
//! [`blocked`](super::blocked) is for many.
//!
//! A lane computes an output and activations are broadcast, so nothing is summed across lanes. The products
//! of a chunk (a group or a part of it) are summed separately and then scaled.

use std::ops::Range;

use super::blocked::Scratch;
use super::buffers::{Buffers, Views};
use super::product::{MANY_TOGETHER, Product};
use super::tail;
use crate::experts::Blocks;
use crate::kernels::{Description, Kernel};
use crate::value::Operand;
use crate::view::Locality;
use crate::writer::Writer;

/// Bytes of words that a workgroup reads: enough to hide its launch cost, few enough to balance the work.
const WORKGROUP_BYTES: usize = 256 * 1024;

/// The fewest workgroups, if there are enough panels.
const WORKGROUPS: usize = 16;

/// The position of a chunk.
pub(super) struct Chunk {
    /// Its index in the row.
    pub(super) number: Operand,
    /// The first word of its codes in a lane.
    word: Operand,
    /// Which part of a unit's codes it has, if not all of them.
    part: usize,
    /// The chunk that is prefetched meanwhile.
    ahead: Ahead,
}

/// A later chunk: of the same panels, or, past their end, of the next ones.
#[derive(Clone)]
struct Ahead {
    /// How many panels ahead it is.
    panels: Operand,
    number: Operand,
    word: Operand,
}

/// Rows whose totals are kept while a panel's words are read once: totals of two panels and a chunk's
/// activations just fit the L1 cache.
pub(super) const BLOCK: usize = 64;

/// Operations on operands in one iteration of the innermost loop.
const UNROLL: usize = 128;

/// `x: [rows, inputs]`, [prepared](super::prepare), times the transpose of a packed weight: `[rows, outputs]`
/// f32; or, for each of `blocks` of rows, times its expert's weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    pub(super) product: Product,
    /// The rows, or those of a block.
    pub(super) rows: usize,
    pub(super) blocks: Option<Blocks>,
}

/// Panels that are computed together, and the index of the first.
pub(super) struct Panels<'a> {
    first: &'a Operand,
    pub(super) count: usize,
}

impl Description for Linear {
    fn kernel(&self) -> Kernel {
        let Product { form, arithmetic, .. } = self.product;
        let rows = self.rows;
        let groups = form.panels().div_ceil(self.workgroup(self.panels_together()));
        let extra = usize::from(!form.tail().is_empty());
        let label = format!(
            "{}linear_{}_{}_{rows}x{}x{}",
            if self.blocks.is_some() { "expert_" } else { "" },
            form.name(),
            arithmetic.name(),
            form.inputs,
            form.outputs
        );
        let blocks = self.blocks.map_or(1, |blocks| blocks.count);
        let mut kernel = Kernel::new(label, [groups + extra, blocks, 1]);
        let buffers = Buffers::new(self, &mut kernel);
        let views = Views::new(self, &mut kernel, &buffers);
        let as_stored = (extra > 0).then(|| tail::Views::new(self, &mut kernel, &buffers));
        let number = kernel.workgroup(0);
        let w = &mut kernel.body;
        let compute = |w: &mut Writer| self.workgroup_results(w, &views, as_stored.as_ref(), &number);
        match &buffers.block {
            Some(block) => block.results(w, &number, &views.out, [rows, form.outputs], compute),
            None => compute(w),
        }
        kernel
    }
}

impl Linear {
    /// The outputs of the workgroup `number`.
    fn workgroup_results(
        &self,
        w: &mut Writer,
        views: &Views,
        as_stored: Option<&tail::Views>,
        number: &Operand,
    ) {
        let (rows, panels) = (self.rows, self.product.form.panels());
        let together = self.panels_together();
        let workgroup = self.workgroup(together);
        let groups = panels.div_ceil(workgroup);
        let scratch = (rows > self.product.streamed()).then(|| self.scratch(w, together));
        if panels > 0 {
            let full = panels - panels % together;
            let [workgroup, full_end, step] = [workgroup, full, together].map(|n| w.index(n));
            let begin = w.arith("begin", "muli", number, &workgroup);
            let end = w.arith("end", "addi", &begin, &workgroup);
            let end = w.arith("end", "minui", &end, &full_end);
            w.for_loop("panel", [&begin, &end, &step], &[], |w, panel, _| {
                self.panels(w, views, &Panels { first: panel, count: together }, scratch.as_ref());
                Vec::new()
            });
            if full < panels {
                let last = w.index(groups - 1);
                let is_last = w.compare("is_last", "eq", number, &last);
                w.if_then(&is_last, |w| {
                    let rest = Panels { first: &full_end, count: panels - full };
                    self.panels(w, views, &rest, scratch.as_ref());
                });
            }
        }
        if let Some(as_stored) = as_stored {
            let behind = w.index(groups);
            let is_behind = w.compare("is_behind", "eq", number, &behind);
            w.if_then(&is_behind, |w| tail::rows(w, self, views, as_stored));
        }
    }

    /// How many panels are computed together, sharing loads of activations.
    fn panels_together(&self) -> usize {
        let product = &self.product;
        let most = if self.rows > product.streamed() {
            MANY_TOGETHER
        } else {
            (product.sums() / self.rows).min(product.instructions.schedule.streams)
        };
        most.min(product.form.panels()).max(1)
    }

    /// The panels of a workgroup.
    fn workgroup(&self, together: usize) -> usize {
        let form = &self.product.form;
        let by_bytes = WORKGROUP_BYTES / form.panel_bytes().max(1);
        by_bytes.min(form.panels() / WORKGROUPS).max(1).next_multiple_of(together)
    }

    /// The outputs of some panels for all rows.
    fn panels(&self, w: &mut Writer, views: &Views, panels: &Panels<'_>, scratch: Option<&Scratch>) {
        match scratch {
            None => self.few_rows(w, views, panels),
            Some(scratch) => {
                let (blocks, rest) = (self.rows / BLOCK, self.rows % BLOCK);
                let [zero, end, step] = [0, blocks * BLOCK, BLOCK].map(|n| w.index(n));
                if blocks > 0 {
                    w.for_loop("block", [&zero, &end, &step], &[], |w, block, _| {
                        self.block(w, views, panels, scratch, block, BLOCK);
                        Vec::new()
                    });
                }
                if rest > 0 {
                    self.block(w, views, panels, scratch, &end, rest);
                }
            }
        }
    }

    /// The indices of some panels.
    pub(super) fn numbers(w: &mut Writer, panels: &Panels<'_>) -> Vec<Operand> {
        (0..panels.count).map(|i| w.offset("panel", panels.first, i)).collect()
    }

    /// The outputs of some panels for few rows: all sums stay in registers.
    fn few_rows(&self, w: &mut Writer, views: &Views, panels: &Panels<'_>) {
        let product = &self.product;
        let form = &product.form;
        let numbers = Self::numbers(w, panels);
        let rows: Vec<Operand> = (0..self.rows).map(|row| w.index(row)).collect();
        let start = w.constant("0.0", product.vector("f32"));
        let totals = vec![start; panels.count * self.rows];
        let totals = self.for_chunks(w, panels.count, &totals, |w, chunk, totals| {
            let sums = self.chunk_sums(w, views, &numbers, chunk, &rows);
            let of_x: Vec<[Option<Operand>; 2]> =
                rows.iter().map(|row| product.of_activations(w, &views.meta, &chunk.number, row)).collect();
            let mut next = Vec::with_capacity(totals.len());
            let planes = product.arithmetic.planes();
            for (number, (sums, totals)) in
                numbers.iter().zip(sums.chunks(rows.len() * planes).zip(totals.chunks(rows.len())))
            {
                let of_weight = self.of_chunk(w, views, number, chunk);
                for ((sums, total), of_x) in sums.chunks(planes).zip(totals).zip(&of_x) {
                    next.push(product.add_chunk(w, total, sums, &of_weight, of_x));
                }
            }
            next
        });
        let lanes = w.index(form.lanes);
        for (number, totals) in numbers.iter().zip(totals.chunks(rows.len())) {
            let output = w.arith("output", "muli", number, &lanes);
            for (row, total) in rows.iter().zip(totals) {
                views.out.store(w, total, &[row, &output]);
            }
        }
    }

    /// Runs `body` for all chunks of a row; those that share a unit of codes are unrolled.
    pub(super) fn for_chunks(
        &self,
        w: &mut Writer,
        panels: usize,
        carried: &[Operand],
        mut body: impl FnMut(&mut Writer, &Chunk, &[Operand]) -> Vec<Operand>,
    ) -> Vec<Operand> {
        let form = &self.product.form;
        let together = form.chunks_together();
        let words = form.chunk().max(form.unit()) / form.unit() * form.unit_words();
        let spans = form.chunks() / together;
        let ahead = (self.words_ahead() / words).clamp(1, spans);
        let [zero, one, end, panels] = [0, 1, spans, panels].map(|n| w.index(n));
        w.for_loop("span", [&zero, &end, &one], carried, |w, span, carried| {
            let first = w.scaled("first", span, together);
            let word = w.scaled("first", span, words);
            // Past the end of a panel, chunks of the next panels are prefetched.
            let later = w.offset("later", span, ahead);
            let is_behind = w.compare("is_behind", "uge", &later, &end);
            let back = w.select("back", &is_behind, &end, &zero);
            let further = w.select("further", &is_behind, &panels, &zero);
            let later = w.arith("later", "subi", &later, &back);
            let first_ahead = w.scaled("ahead", &later, together);
            let word_ahead = w.scaled("ahead", &later, words);
            (0..together).fold(carried.to_vec(), |carried, part| {
                let number = w.offset("chunk", &first, part);
                let number_ahead = w.offset("ahead", &first_ahead, part);
                let ahead = Ahead { panels: further.clone(), number: number_ahead, word: word_ahead.clone() };
                body(w, &Chunk { number, word: word.clone(), part, ahead }, &carried)
            })
        })
    }

    /// About how many words of a panel prefetching is ahead.
    fn words_ahead(&self) -> usize {
        let word = if self.product.form.planes().is_some() { 4 } else { 2 };
        self.product.instructions.schedule.ahead / (word * self.product.form.lanes)
    }

    /// The codes of a unit that belong to a chunk.
    pub(super) fn codes(&self, chunk: &Chunk) -> Range<usize> {
        let form = &self.product.form;
        let count = form.unit().min(form.chunk());
        chunk.part * count..(chunk.part + 1) * count
    }

    /// The words of the unit of a panel that begins `behind` words after the word `first` of a chunk.
    pub(super) fn unit(
        &self,
        w: &mut Writer,
        views: &Views,
        panel: &Operand,
        chunk: &Chunk,
        first: &Operand,
        behind: usize,
    ) -> Vec<Operand> {
        let form = &self.product.form;
        let zero = w.index(0);
        let (here, ahead) =
            (w.added("first", &chunk.word, first), w.added("first", &chunk.ahead.word, first));
        let panel_ahead = w.added("panel", panel, &chunk.ahead.panels);
        (0..form.unit_words())
            .map(|word| {
                let next = w.offset("word", &ahead, behind + word);
                views.weight.codes().prefetch(w, &[&panel_ahead, &next, &zero], Locality::First);
                let at = w.offset("word", &here, behind + word);
                views.weight.codes().load(w, "words", &[panel, &at, &zero], form.lanes)
            })
            .collect()
    }

    /// The scale and offset of a chunk in each lane of a panel.
    pub(super) fn of_chunk(
        &self,
        w: &mut Writer,
        views: &Views,
        panel: &Operand,
        chunk: &Chunk,
    ) -> (Operand, Option<Operand>) {
        let product = &self.product;
        let panel_ahead = w.added("panel", panel, &chunk.ahead.panels);
        product.prefetch_of_chunk(w, &views.weight, &panel_ahead, &chunk.ahead.number);
        product.of_chunk(w, &views.weight, panel, &chunk.number)
    }

    /// The sums of a chunk's products: per panel for each row, and per row for each plane.
    fn chunk_sums(
        &self,
        w: &mut Writer,
        views: &Views,
        panels: &[Operand],
        chunk: &Chunk,
        rows: &[Operand],
    ) -> Vec<Operand> {
        let product = &self.product;
        let form = &product.form;
        let codes = self.codes(chunk);
        let (units, steps) = (form.chunk() / codes.len(), codes.len() / product.arithmetic.width());
        let planes = product.arithmetic.planes();
        let most = UNROLL / (panels.len() * steps * (rows.len() * planes + 1));
        let unroll = unrolled(units, most);
        let turn = |w: &mut Writer, unit: &Operand, sums: &[Operand]| {
            let mut sums = sums.to_vec();
            let step_of_unit = w.scaled("step", unit, steps);
            let word = w.scaled("word", unit, form.unit_words());
            for i in 0..unroll {
                let operands: Vec<Vec<Operand>> = panels
                    .iter()
                    .map(|panel| {
                        let words = self.unit(w, views, panel, chunk, &word, i * form.unit_words());
                        product.unpack(w, &words, codes.clone())
                    })
                    .collect();
                for step in 0..steps {
                    let at = w.offset("step", &step_of_unit, i * steps + step);
                    for (m, row) in rows.iter().enumerate() {
                        for plane in 0..planes {
                            let place = w.index(plane);
                            let x = product.broadcast(w, &views.x, &[&chunk.number, row, &at, &place]);
                            for (n, operands) in operands.iter().enumerate() {
                                let sum = &mut sums[(n * rows.len() + m) * planes + plane];
                                *sum = product.accumulate(w, sum, &operands[step], &x);
                            }
                        }
                    }
                }
            }
            sums
        };
        let sums = vec![self.beginnings(w, views, &chunk.number, rows); panels.len()].concat();
        let [zero, end, step] = [0, units, unroll].map(|n| w.index(n));
        if unroll == units {
            return turn(w, &zero, &sums);
        }
        w.for_loop("unit", [&zero, &end, &step], &sums, turn)
    }

    /// The initial values of a chunk's sums for each row and plane.
    pub(super) fn beginnings(
        &self,
        w: &mut Writer,
        views: &Views,
        chunk: &Operand,
        rows: &[Operand],
    ) -> Vec<Operand> {
        rows.iter().flat_map(|row| self.product.beginnings(w, &views.meta, chunk, row)).collect()
    }
}

/// How many of `units` are unrolled in a loop: `most` if they can be halved to that. A loop never has two
/// iterations: the compiler unrolls it, and then has more live values than registers.
pub(super) fn unrolled(units: usize, most: usize) -> usize {
    let mut unroll = units;
    while unroll.is_multiple_of(2) && (unroll > most || 2 * unroll == units) {
        unroll /= 2;
    }
    unroll
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_have_one_iteration_or_more_than_two() {
        assert_eq!([8, 16, 32].map(|units| unrolled(units, 16)), [8, 16, 8]);
        assert_eq!([8, 16, 12, 3].map(|units| unrolled(units, 4)), [2, 4, 3, 3]);
    }
}
