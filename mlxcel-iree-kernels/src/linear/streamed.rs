//! Few rows: the weight is streamed once, and the sums of all rows stay in registers.
//!
//! Each result is one sum over the inputs in order, as in [`blocked`](super::blocked), so that it does not
//! depend on the number of rows. Several panels, or rows, are enough that no addition waits for the previous
//! one while memory is read. Experts and adapters of few outputs, of which no such independence is claimed,
//! have several sums over parts of the inputs instead.

use super::product::{Buffers, Product};
use crate::value::Operand;
use crate::view::{Locality, View};
use crate::writer::Writer;

/// Steps of one iteration of the loop.
const UNROLL: usize = 2;

/// The panels of a workgroup: for one row as many as saturate memory bandwidth, for several rows two, whose
/// units share loads of activations.
pub(super) fn panels_together(product: &Product) -> usize {
    let most = if product.rows == 1 { product.format.streams() } else { 2 };
    let fitting = product.format.streamed_sums() / product.rows;
    product.panels_together(if fitting >= most { most } else { 1 })
}

/// The bytes that a workgroup reads at least, unless the weight has fewer: starting it costs little beside them.
const WORKGROUP_BYTES: usize = 32 * 1024;

/// Panels of one workgroup, a multiple of those that are computed together.
pub(super) fn panels_of_workgroup(product: &Product) -> usize {
    let together = panels_together(product);
    let bytes = together * product.steps() * product.format.step_bytes();
    let turns = (WORKGROUP_BYTES / bytes.max(1)).clamp(1, product.panels().div_ceil(together).max(1));
    together * turns
}

/// Parts of the inputs that have sums of their own.
fn parts_of_inputs(product: &Product) -> usize {
    const SUMS: usize = 4;
    let is_narrow = product.of_experts() && product.rows == 1 && product.panels() <= 4 * SUMS;
    if is_narrow { SUMS / panels_together(product) } else { 1 }
}

/// Computes the outputs of a workgroup's panels from `first` on.
pub(super) fn write(product: &Product, w: &mut Writer, buffers: &Buffers, first: &Operand) {
    let (together, of_workgroup) = (panels_together(product), panels_of_workgroup(product));
    if of_workgroup == together {
        return write_together(product, w, buffers, first);
    }
    let [all, step] = [product.panels(), together].map(|value| w.index(value));
    let end = w.offset("end", first, of_workgroup);
    let end = w.arith("end", "minui", &end, &all);
    w.for_loop("panel", [first, &end, &step], &[], |w, panel, _| {
        write_together(product, w, buffers, panel);
        Vec::new()
    });
}

/// Computes the outputs of the panels from `first` on that are computed together.
fn write_together(product: &Product, w: &mut Writer, buffers: &Buffers, first: &Operand) {
    let format = &product.format;
    let (rows, panels) = (product.rows, panels_together(product));
    let panels: Vec<Operand> = (0..panels).map(|i| w.offset("panel", first, i)).collect();
    let starts: Vec<Operand> = panels.iter().map(|panel| product.panel_start(w, panel)).collect();
    let parts = parts_of_inputs(product);
    let main_steps = product.steps() / parts / UNROLL * UNROLL;

    let zero = w.constant("0.0", format.sum());
    let of_part = panels.len() * rows;
    let mut sums = vec![zero; parts * of_part];
    let stream = Stream { product, buffers, starts: &starts };
    if main_steps > 0 {
        let range = [0, main_steps, UNROLL].map(|value| w.index(value));
        sums = w.for_loop("step", [&range[0], &range[1], &range[2]], &sums, |w, step, sums| {
            let mut sums = sums.to_vec();
            for turn in 0..UNROLL {
                for (part, sums) in sums.chunks_exact_mut(of_part).enumerate() {
                    let step = w.offset("step", step, part * main_steps + turn);
                    stream.step(w, &step, turn, sums);
                }
            }
            sums
        });
    }
    for part in (1..parts).rev() {
        for (index, more) in sums.split_off(part * of_part).iter().enumerate() {
            sums[index] = w.arith("sum", "addf", &sums[index], more);
        }
    }
    for step in parts * main_steps..product.steps() {
        let at = w.index(step);
        stream.step(w, &at, step % UNROLL, &mut sums);
    }
    if product.has_last_step() {
        stream.last_step(w, &mut sums);
    }
    for (panel, sums) in panels.iter().zip(sums.chunks_exact(rows)) {
        let column = product.column(w, panel);
        for (row, total) in sums.iter().enumerate() {
            let row = w.index(row);
            buffers.out.store(w, total, &[&row, &column]);
        }
    }
}

/// State shared by all steps.
struct Stream<'a> {
    product: &'a Product,
    buffers: &'a Buffers,
    starts: &'a [Operand],
}

impl Stream<'_> {
    /// Adds the products of one step, number `turn` of the unrolled ones.
    fn step(&self, w: &mut Writer, step: &Operand, turn: usize, sums: &mut [Operand]) {
        let format = &self.product.format;
        let lane = w.scaled("at", step, format.lanes());
        let weights: &View = &self.buffers.panels;
        let units: Vec<Vec<Operand>> = self
            .starts
            .iter()
            .map(|start| {
                let at = w.added("at", start, &lane);
                // One prefetch per cache line.
                if self.product.rows > 1
                    && format.fetches_ahead()
                    && turn.is_multiple_of(64 / format.step_bytes().min(64))
                {
                    let ahead = w.offset("ahead", &at, self.product.ahead());
                    weights.prefetch(w, &[&ahead], Locality::Second);
                }
                format.load(w, weights, &at)
            })
            .collect();
        let rows = self.product.rows;
        let x = w.scaled("at", step, format.units() * rows);
        for unit in 0..format.units() {
            let of_unit: Vec<&Operand> = units.iter().map(|units| &units[unit]).collect();
            let x = w.offset("at", &x, unit * rows);
            self.unit(w, &of_unit, &x, sums);
        }
    }

    /// Adds the products of one unit of each panel with the activations from `x` on to the sums.
    fn unit(&self, w: &mut Writer, units: &[&Operand], x: &Operand, sums: &mut [Operand]) {
        let format = &self.product.format;
        let rows = self.product.rows;
        for row in 0..rows {
            let at = w.offset("at", x, row);
            let activation = format.broadcast(w, &self.buffers.x, &at);
            for (panel, unit) in units.iter().enumerate() {
                let sum = &mut sums[panel * rows + row];
                *sum = format.multiply_add(w, unit, &activation, sum);
            }
        }
    }

    fn last_step(&self, w: &mut Writer, sums: &mut [Operand]) {
        let format = &self.product.format;
        let last = self.product.inputs - 1;
        let units: Vec<Operand> = self
            .starts
            .iter()
            .map(|start| {
                let start = w.scaled("at", start, format.depth());
                let at = w.offset("at", &start, last * format.lanes());
                format.load_last(w, &self.buffers.elements, &at)
            })
            .collect();
        let units: Vec<&Operand> = units.iter().collect();
        let x = w.index(last * self.product.rows);
        self.unit(w, &units, &x, sums);
    }
}
