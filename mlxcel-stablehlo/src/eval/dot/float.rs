//! Products of floats, with sums in `f32`.

use super::super::kernel::Bound;
use super::super::lanes::store_f32;
use super::super::run::Frame;
use super::super::workers::Workers;
use super::simd::{PANEL, ROWS, dot_rows, multiply_tile, tile_rows};
use super::weight::{BoundWeight, interleave};
use super::{Dot, Sizes};
use crate::types::ElementType;

/// Up to this many rows of `X`, every row of `W` is multiplied where it lies; beyond, packing it pays.
const FEW_ROWS: usize = 8;

/// How many elements of the contraction are packed at a time: a panel of weights then fills half of a first-level cache.
const DEPTH: usize = 256;

/// Multiplications that make a block of few rows worth handing to another thread.
const BLOCK_WORK: usize = 1 << 16;

/// A block of rows of `W`, and the places of the result that it fills.
struct Task<'o> {
    batch: usize,
    first: usize,
    count: usize,
    /// For each row of `X` the block's columns; if swapped, one piece with the block's rows.
    places: Vec<&'o mut [u8]>,
}

/// Cuts the result into tasks of `block` rows of `W`.
fn tasks(out: &mut [u8], sizes: Sizes, block: usize, swapped: bool, size: usize) -> Vec<Task<'_>> {
    let Sizes { m, n, .. } = sizes;
    let mut tasks = Vec::with_capacity(sizes.batch * n.div_ceil(block));
    for (batch, result) in out.chunks_mut(m * n * size).enumerate() {
        let start = tasks.len();
        tasks.extend((0..n).step_by(block).map(|first| {
            let places = Vec::with_capacity(if swapped { 1 } else { m });
            Task { batch, first, count: block.min(n - first), places }
        }));
        let (line, piece) = if swapped { (m * n, block * m) } else { (n, block) };
        for line in result.chunks_mut(line * size) {
            for (task, place) in tasks[start..].iter_mut().zip(line.chunks_mut(piece * size)) {
                task.places.push(place);
            }
        }
    }
    tasks
}

impl Task<'_> {
    /// Writes sums, a line of `stride` for each row of `X`, into the result.
    fn store(&mut self, sums: &[f32], stride: usize, m: usize, swapped: bool, element: ElementType) {
        if !swapped {
            for (place, sums) in self.places.iter_mut().zip(sums.chunks(stride)) {
                store_f32(&sums[..self.count], element, place);
            }
            return;
        }
        let mut line = vec![0.0; m];
        for place in &mut self.places {
            for (column, place) in place.chunks_mut(m * element.bytes_for(1)).enumerate() {
                for (row, value) in line.iter_mut().enumerate() {
                    *value = sums[row * stride + column];
                }
                store_f32(&line, element, place);
            }
        }
    }
}

impl Dot {
    pub(super) fn run_float(&self, frame: &Frame<'_>, out: &mut [u8]) {
        let Sizes { batch, m, n, k } = self.sizes;
        let x = self.x.bind(|slot| frame.bytes(slot));
        let w = self.w.bind(|slot| frame.bytes(slot), n, k);
        if m <= FEW_ROWS && !w.is_columns() {
            let scratch = 8 * batch * m * k + 4 * k * frame.workers.threads();
            frame.arena.with_scratch(scratch, || self.few_rows(&x, &w, frame.workers, out));
        } else {
            let block = block_rows(self.sizes, frame.workers.threads());
            let own = 4 * block * (2 * DEPTH + m.next_multiple_of(6));
            let scratch = 4 * batch * m.next_multiple_of(6) * k + own * frame.workers.threads();
            frame.arena.with_scratch(scratch, || self.panels(&x, &w, frame.workers, block, out));
        }
    }

    /// Multiplies each row of `W` with all rows of `X`.
    fn few_rows(&self, x: &Bound<'_>, w: &BoundWeight<'_>, workers: &Workers, out: &mut [u8]) {
        let Sizes { batch, m, n, k } = self.sizes;
        let arch = pulp::Arch::new();
        let mut rows = vec![0.0; batch * m * k];
        x.evaluator().write_f32(0, &mut rows);
        if w.is_bf16_pairs() && k > 0 {
            let mut line = vec![0.0; k];
            for row in rows.chunks_mut(k) {
                let (even, odd) = line.split_at_mut(k / 2);
                for ((even, odd), &[a, b]) in even.iter_mut().zip(odd).zip(row.as_chunks::<2>().0) {
                    (*even, *odd) = (a, b);
                }
                row.copy_from_slice(&line);
            }
        }
        let block = (BLOCK_WORK / (m * k).max(1)).clamp(1, n);
        let tasks = tasks(out, self.sizes, block, self.swapped, self.element.bytes_for(1));
        let rows = &rows;
        workers.for_each(
            tasks.into_iter(),
            || (w.reader(), Vec::new()),
            |(reader, sums), mut task: Task<'_>| {
                sums.clear();
                sums.resize(m * task.count, 0.0);
                for column in 0..task.count {
                    let row = reader.row(task.batch, task.first + column);
                    for first in (0..m).step_by(ROWS) {
                        let count = ROWS.min(m - first);
                        let mut x: [&[f32]; ROWS] = [&[]; ROWS];
                        for (i, x) in x[..count].iter_mut().enumerate() {
                            *x = &rows[(task.batch * m + first + i) * k..][..k];
                        }
                        let mut results = [0.0; ROWS];
                        dot_rows(arch, row, &x[..count], &mut results);
                        for (i, &result) in results[..count].iter().enumerate() {
                            sums[(first + i) * task.count + column] = result;
                        }
                    }
                }
                let stride = task.count;
                task.store(sums, stride, m, self.swapped, self.element);
            },
        );
    }

    /// Packs blocks of `W` and multiplies them with packed `X`.
    fn panels(&self, x: &Bound<'_>, w: &BoundWeight<'_>, workers: &Workers, block: usize, out: &mut [u8]) {
        let Sizes { m, k, .. } = self.sizes;
        let arch = pulp::Arch::new();
        let height = tile_rows(m);
        let padded = m.next_multiple_of(height);
        let packed = pack_x(x, self.sizes, height, workers);
        let tasks = tasks(out, self.sizes, block, self.swapped, self.element.bytes_for(1));
        workers.for_each(
            tasks.into_iter(),
            || (w.reader(), Vec::new(), Vec::new()),
            |(reader, panels, sums), mut task: Task<'_>| {
                let width = task.count.next_multiple_of(PANEL);
                sums.clear();
                sums.resize(padded * width, 0.0);
                for first in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - first);
                    panels.resize(width * depth, 0.0);
                    reader.pack(task.batch, (task.first, task.count), (first, depth), panels);
                    // The part of packed X for this batch index and depth.
                    let start = task.batch * padded * k + padded * first;
                    let x = &packed[start..start + padded * depth];
                    for (i, panel) in panels.chunks_exact(depth * PANEL).enumerate() {
                        for (j, x) in x.chunks_exact(height * depth).enumerate() {
                            let tile = &mut sums[j * height * width + i * PANEL..];
                            multiply_tile(arch, height, x, panel, tile, width);
                        }
                    }
                }
                task.store(sums, width, m, self.swapped, self.element);
            },
        );
    }
}

/// How many rows of `W` a task takes: fewer where that gives every thread work.
fn block_rows(sizes: Sizes, threads: usize) -> usize {
    let mut block = 128;
    while block > PANEL && sizes.batch * sizes.n.div_ceil(block) < 4 * threads {
        block /= 2;
    }
    block
}

/// `X` as panels of `height` rows, those of one depth next to each other: `[B][K / DEPTH][M / height][DEPTH][height]`.
/// Rows beyond the last are zero.
fn pack_x(x: &Bound<'_>, sizes: Sizes, height: usize, workers: &Workers) -> Vec<f32> {
    let Sizes { batch, m, k, .. } = sizes;
    let padded = m.next_multiple_of(height);
    let mut packed = vec![0.0; batch * padded * k];
    let mut pieces = Vec::new();
    let mut rest = packed.as_mut_slice();
    for batch in 0..batch {
        for first in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - first);
            let (piece, after) = rest.split_at_mut(padded * depth);
            rest = after;
            pieces.push((batch, first, depth, piece));
        }
    }
    workers.for_each(
        pieces.into_iter(),
        || (x.evaluator(), Vec::new()),
        |(evaluator, lines), (batch, first, depth, piece): (_, _, _, &mut [f32])| {
            for (i, panel) in piece.chunks_exact_mut(height * depth).enumerate() {
                lines.clear();
                lines.resize(height * depth, 0.0);
                for (j, line) in lines.chunks_exact_mut(depth).enumerate() {
                    let row = i * height + j;
                    if row < m {
                        evaluator.write_f32((batch * m + row) * k + first, line);
                    }
                }
                match height {
                    1 => interleave::<1>(lines, depth, panel),
                    2 => interleave::<2>(lines, depth, panel),
                    4 => interleave::<4>(lines, depth, panel),
                    _ => interleave::<6>(lines, depth, panel),
                }
            }
        },
    );
    packed
}
