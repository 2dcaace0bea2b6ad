//! Many rows: a block of inputs of the weight is converted once and multiplied from the L1 cache with tile
//! after tile of rows; a workgroup's sums stay on the stack until its last block.

use super::matrices;
use super::product::{Arrangement, Buffers, Product};
use crate::value::Operand;
use crate::view::{Locality, View};
use crate::writer::Writer;

/// The most bytes of sums on the stack.
const SUM_BYTES: usize = 96 * 1024;

/// The fewest workgroups, for many cores.
const WORKGROUPS: usize = 64;

/// Panels that are computed together: their units share loads of activations.
fn panels_together(product: &Product) -> usize {
    product.panels_together(2)
}

/// Panels of one workgroup, which share the activations that it loads into the cache.
pub(super) fn panels_of_workgroup(product: &Product) -> usize {
    let together = panels_together(product);
    let groups = product.panels() / together;
    let fitting = SUM_BYTES / (sums_of_group(product) * 4);
    together * (groups / WORKGROUPS).clamp(1, fitting.clamp(1, 8))
}

/// Sums of the panels that are computed together, over the rows of a chunk.
fn sums_of_group(product: &Product) -> usize {
    let Arrangement { tiles, tile_rows, .. } = product.arrangement;
    tiles * tile_rows * panels_together(product) * product.format.lanes()
}

/// State shared by the parts of the kernel.
struct Blocks<'a> {
    product: &'a Product,
    buffers: &'a Buffers,
    /// Panels that are computed together.
    panels: usize,
    /// The sums: per group of panels those of each row, panel by panel.
    sums: View,
    /// The units of a block of inputs: for each input (or pair) those of every panel of a group.
    units: View,
}

/// Computes the outputs of the workgroup's panels from `first` on.
pub(super) fn write(product: &Product, w: &mut Writer, buffers: &Buffers, first: &Operand) {
    let format = &product.format;
    let Arrangement { chunks, blocks, block_units, .. } = product.arrangement;
    let panels = panels_together(product);
    let of_workgroup = panels_of_workgroup(product);
    let group_sums = sums_of_group(product);
    let sums = View::on_stack(w, "sums", &[of_workgroup / panels * group_sums], "f32");
    let units = block_units * panels * format.lanes() * format.vectors();
    let units = View::on_stack(w, "units", &[units], format.unit_element());
    let this = Blocks { product, buffers, panels, sums, units };

    let [zero, one] = [0, 1].map(|value| w.index(value));
    let all = w.index(product.panels());
    let end = w.offset("end", first, of_workgroup);
    let end = w.arith("end", "minui", &end, &all);
    let step = w.index(panels);
    let chunks = w.index(chunks);
    let blocks = w.index(blocks);
    w.for_loop("chunk", [&zero, &chunks, &one], &[], |w, chunk, _| {
        this.clear(w);
        w.for_loop("block", [&zero, &blocks, &one], &[], |w, block, _| {
            w.for_loop("panel", [first, &end, &step], &[], |w, panel, _| {
                let group = this.group(w, panel, first);
                let count = this.make_ready(w, panel, block);
                this.multiply(w, chunk, block, &group, &count);
                Vec::new()
            });
            Vec::new()
        });
        w.for_loop("panel", [first, &end, &step], &[], |w, panel, _| {
            let group = this.group(w, panel, first);
            this.finish(w, chunk, panel, &group);
            Vec::new()
        });
        Vec::new()
    });
}

impl Blocks<'_> {
    /// Where the sums of the group that begins with a panel start.
    fn group(&self, w: &mut Writer, panel: &Operand, first: &Operand) -> Operand {
        let ahead = w.arith("ahead", "subi", panel, first);
        w.scaled("group", &ahead, sums_of_group(self.product) / self.panels)
    }

    fn clear(&self, w: &mut Writer) {
        let zero = w.constant("0.0", self.product.format.sum());
        let count = panels_of_workgroup(self.product) / self.panels * sums_of_group(self.product);
        let range = [0, count, self.product.format.lanes()].map(|value| w.index(value));
        w.for_loop("sum", [&range[0], &range[1], &range[2]], &[], |w, at, _| {
            self.sums.store(w, &zero, &[at]);
            Vec::new()
        });
    }

    /// Converts a block of the panels from `panel` on to units; returns their number.
    fn make_ready(&self, w: &mut Writer, panel: &Operand, block: &Operand) -> Operand {
        let Product { format, .. } = self.product;
        let (lanes, panels) = (format.lanes(), self.panels);
        let block_steps = self.product.arrangement.block_units * format.steps() / format.units();
        let starts: Vec<Operand> = (0..panels)
            .map(|i| {
                let panel = w.offset("panel", panel, i);
                self.product.panel_start(w, &panel)
            })
            .collect();
        let begin = w.scaled("begin", block, block_steps);
        let steps = w.index(self.product.steps());
        let left = w.arith("left", "subi", &steps, &begin);
        let most = w.index(block_steps);
        let count = w.arith("count", "minui", &left, &most);
        let [zero, one] = [0, format.steps()].map(|value| w.index(value));
        w.for_loop("step", [&zero, &count, &one], &[], |w, step, _| {
            let from = w.added("from", &begin, step);
            let from = w.scaled("from", &from, lanes);
            let to = w.scaled("to", step, format.units() * panels * lanes);
            for (i, start) in starts.iter().enumerate() {
                let at = w.added("at", start, &from);
                if format.fetches_ahead() {
                    // The same position in the next block.
                    let ahead = w.offset("ahead", &at, block_steps * lanes);
                    self.buffers.panels.prefetch(w, &[&ahead], Locality::Second);
                }
                if format.in_matrices() {
                    for (j, unit) in format.load_matrices(w, &self.buffers.panels, &at).iter().enumerate() {
                        let to = w.offset("to", &to, (i * format.vectors() + j) * lanes);
                        self.units.store(w, unit, &[&to]);
                    }
                    continue;
                }
                for (j, unit) in format.load(w, &self.buffers.panels, &at).into_iter().enumerate() {
                    let to = w.offset("to", &to, (j * panels + i) * lanes);
                    self.units.store(w, &unit, &[&to]);
                }
            }
            Vec::new()
        });
        let units = w.scaled("units", &count, format.units());
        let units = w.divided("units", &units, format.steps());
        if !self.product.has_last_step() {
            return units;
        }
        let is_last = w.compare("is_last", "ult", &left, &most);
        w.if_then(&is_last, |w| {
            let to = w.scaled("to", &units, panels * lanes);
            for (i, start) in starts.iter().enumerate() {
                let start = w.scaled("at", start, format.depth());
                let at = w.offset("at", &start, (self.product.inputs - 1) * lanes);
                let unit = format.load_last(w, &self.buffers.elements, &at);
                let to = w.offset("to", &to, i * lanes);
                self.units.store(w, &unit, &[&to]);
            }
        });
        let extra = w.cast("extra", "index_castui", &is_last, "index");
        w.added("units", &units, &extra)
    }

    /// Adds the products of the converted units with the activations of a block, tile by tile.
    fn multiply(&self, w: &mut Writer, chunk: &Operand, block: &Operand, group: &Operand, count: &Operand) {
        let Product { format, arrangement, .. } = self.product;
        let Arrangement { blocks, tiles, block_units, tile_rows, .. } = *arrangement;
        let (lanes, panels) = (format.lanes(), self.panels);
        let tile_sums = tile_rows * panels * lanes;
        let of_chunk = w.scaled("at", chunk, blocks);
        let of_block = w.added("at", &of_chunk, block);
        let of_block = w.scaled("at", &of_block, tiles);
        let [zero, one, all] = [0, 1, tiles].map(|value| w.index(value));
        w.for_loop("tile", [&zero, &all, &one], &[], |w, tile, _| {
            let base = w.scaled("base", tile, tile_sums);
            let base = w.added("base", group, &base);
            let x = w.added("at", &of_block, tile);
            let x = w.scaled("at", &x, block_units * tile_rows);
            let places: Vec<Operand> =
                (0..tile_rows * panels).map(|i| w.offset("place", &base, i * lanes)).collect();
            let carried: Vec<_> = places.iter().map(|at| self.sums.load(w, "sum", &[at], lanes)).collect();
            let sums = w.for_loop("unit", [&zero, count, &one], &carried, |w, unit, sums| {
                let mut sums = sums.to_vec();
                let vectors = panels * format.vectors();
                let from = w.scaled("from", unit, vectors * lanes);
                let units: Vec<Operand> = (0..vectors)
                    .map(|i| {
                        let at = w.offset("from", &from, i * lanes);
                        self.units.load(w, "unit", &[&at], lanes)
                    })
                    .collect();
                let of_unit = w.scaled("at", unit, tile_rows);
                let of_unit = w.added("at", &x, &of_unit);
                if format.in_matrices() {
                    for row in (0..tile_rows).step_by(2) {
                        let at = w.offset("at", &of_unit, row);
                        let sums = &mut sums[row * panels..][..2 * panels];
                        format.add_matrices(w, &units, &self.buffers.x, &at, sums);
                    }
                    return sums;
                }
                for row in 0..tile_rows {
                    let at = w.offset("at", &of_unit, row);
                    let activation = format.broadcast(w, &self.buffers.x, &at);
                    for (panel, unit) in units.iter().enumerate() {
                        let sum = &mut sums[row * panels + panel];
                        *sum = format.multiply_add(w, unit, &activation, sum);
                    }
                }
                sums
            });
            for (sum_of_row, at) in sums.iter().zip(&places) {
                self.sums.store(w, sum_of_row, &[at]);
            }
            Vec::new()
        });
    }

    /// Stores the sums of a chunk of rows in the result.
    fn finish(&self, w: &mut Writer, chunk: &Operand, panel: &Operand, group: &Operand) {
        let Arrangement { tiles, tile_rows, .. } = self.product.arrangement;
        let lanes = self.product.format.lanes();
        let chunk_rows = w.index(tiles * tile_rows);
        let first = w.scaled("row", chunk, tiles * tile_rows);
        let rows = w.index(self.product.rows);
        let left = w.arith("left", "subi", &rows, &first);
        let count = w.arith("count", "minui", &left, &chunk_rows);
        let [zero, one] = [0, 1].map(|value| w.index(value));
        let column = self.product.column(w, panel);
        w.for_loop("row", [&zero, &count, &one], &[], |w, row_of_chunk, _| {
            let row = w.added("row", &first, row_of_chunk);
            if self.product.format.in_matrices() {
                let out = (&self.buffers.out, [&row, &column]);
                matrices::finish_row(w, (&self.sums, group), row_of_chunk, self.panels, out);
                return Vec::new();
            }
            let at = w.scaled("at", row_of_chunk, self.panels * lanes);
            let at = w.added("at", group, &at);
            for i in 0..self.panels {
                let at = w.offset("at", &at, i * lanes);
                let value = self.sums.load(w, "sum", &[&at], lanes);
                let column = w.offset("column", &column, i * lanes);
                self.buffers.out.store(w, &value, &[&row, &column]);
            }
            Vec::new()
        });
    }
}
