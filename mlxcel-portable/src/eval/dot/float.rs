//! Products of floats, with sums in `f32`.

use mlxcel_stablehlo::ElementType;

use super::super::buffer::zeros;
use super::super::error::Result;
use super::super::kernel::Bound;
use super::super::lanes::store_f32;
use super::super::run::Frame;
use super::super::workers::Workers;
use super::simd::{PANEL, ROWS, Rows, TILE, dot_rows, multiply_tile};
use super::weight::{BoundWeight, interleave};
use super::{Dot, Sizes};

/// Up to this many rows of `X`, every row of `W` is multiplied where it lies; beyond, packing it pays.
const FEW_ROWS: usize = 8;

/// How many steps of the contraction are multiplied at a time: a panel of `X` then fills half of a
/// first-level cache.
const DEPTH: usize = 256;

/// How many rows of `W` a task takes of an operand that lies in columns.
const COLUMNS: usize = 4 * PANEL;

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
    /// Writes sums into the result. They are lines of `stride` elements: one for each row of `W` (`by_w`)
    /// with the sums of all rows of `X`, or the other way round.
    fn store(mut self, sums: &[f32], stride: usize, by_w: bool, output: Output) {
        let Output { m, swapped, element } = output;
        let length = if swapped { m } else { self.count };
        let lines = self.places.iter_mut().flat_map(|place| place.chunks_mut(length * element.bytes_for(1)));
        if by_w == swapped {
            for (line, sums) in lines.zip(sums.chunks(stride)) {
                store_f32(&sums[..length], element, line);
            }
            return;
        }
        let mut turned = vec![0.0; length];
        for (row, line) in lines.enumerate() {
            for (value, sums) in turned.iter_mut().zip(sums.chunks(stride)) {
                *value = sums[row];
            }
            store_f32(&turned, element, line);
        }
    }
}

/// The layout of the result.
#[derive(Clone, Copy)]
struct Output {
    m: usize,
    swapped: bool,
    element: ElementType,
}

impl Dot {
    pub(super) fn run_float(&self, frame: &Frame<'_>, out: &mut [u8]) -> Result<()> {
        let Sizes { batch, m, n, k } = self.sizes;
        let x = self.x.bind(|slot| frame.bytes(slot));
        let w = self.w.bind(|slot| frame.bytes(slot), n, k);
        let threads = frame.workers.threads();
        if w.is_columns() {
            let padded = m.next_multiple_of(TILE);
            let scratch = 4 * (batch * padded * k + threads * COLUMNS * (DEPTH + padded));
            frame.arena.with_scratch(scratch, || self.columns(&x, &w, frame.workers, out))
        } else if m <= FEW_ROWS {
            let scratch = 4 * (batch * m * k + threads * k);
            frame.arena.with_scratch(scratch, || self.few_rows(&x, &w, frame.workers, out))
        } else {
            let block = block_rows(self.sizes, threads);
            let padded = m.next_multiple_of(PANEL);
            let scratch = 4 * (batch * padded * k + threads * block * (DEPTH + padded));
            frame.arena.with_scratch(scratch, || self.panels(&x, &w, frame.workers, block, out))
        }
    }

    /// Multiplies each row of `W` with all rows of `X`.
    fn few_rows(&self, x: &Bound<'_>, w: &BoundWeight<'_>, workers: &Workers, out: &mut [u8]) -> Result<()> {
        let Sizes { batch, m, n, k } = self.sizes;
        let arch = pulp::Arch::new();
        let mut rows: Box<[f32]> = zeros(batch * m * k)?;
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
            |(reader, sums), task: Task<'_>| {
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
                            sums[column * m + first + i] = result;
                        }
                    }
                }
                task.store(sums, m, true, self.output());
            },
        );
        Ok(())
    }

    /// Multiplies blocks of `W` with packed `X`.
    fn panels(
        &self,
        x: &Bound<'_>,
        w: &BoundWeight<'_>,
        workers: &Workers,
        block: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let Sizes { m, k, .. } = self.sizes;
        let arch = pulp::Arch::new();
        let padded = m.next_multiple_of(PANEL);
        let packed = pack_x(x, self.sizes, workers)?;
        let tasks = tasks(out, self.sizes, block, self.swapped, self.element.bytes_for(1));
        workers.for_each(
            tasks.into_iter(),
            || (w.reader(), Vec::new(), Vec::new()),
            |(reader, lines, sums), task: Task<'_>| {
                let rows = task.count.next_multiple_of(TILE);
                sums.clear();
                sums.resize(rows * padded, 0.0);
                for first in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - first);
                    lines.resize(rows * depth, 0.0);
                    reader.read_rows(task.batch, (task.first, task.count), (first, depth), lines);
                    // The part of packed X for this batch index and depth.
                    let start = task.batch * padded * k + padded * first;
                    let panels = packed[start..start + padded * depth].chunks_exact(PANEL * depth);
                    for (i, panel) in panels.enumerate() {
                        for (j, rows) in lines.chunks_exact(TILE * depth).enumerate() {
                            let rows = Rows { elements: rows, stride: depth };
                            let tile = &mut sums[j * TILE * padded + i * PANEL..];
                            multiply_tile(arch, rows, panel, tile, padded);
                        }
                    }
                }
                task.store(sums, padded, true, self.output());
            },
        );
        Ok(())
    }

    /// Multiplies blocks of `W`, whose columns are contiguous, with the rows of `X` as they are.
    fn columns(&self, x: &Bound<'_>, w: &BoundWeight<'_>, workers: &Workers, out: &mut [u8]) -> Result<()> {
        let Sizes { batch, m, k, .. } = self.sizes;
        let arch = pulp::Arch::new();
        let padded = m.next_multiple_of(TILE);
        // Rows beyond the last are zero.
        let mut rows: Box<[f32]> = zeros(batch * padded * k)?;
        workers.for_each(
            rows.chunks_mut((padded * k).max(1)).enumerate(),
            || x.evaluator(),
            |x, (batch, rows): (usize, &mut [f32])| x.write_f32(batch * m * k, &mut rows[..m * k]),
        );
        let tasks = tasks(out, self.sizes, COLUMNS, self.swapped, self.element.bytes_for(1));
        let rows = &rows;
        workers.for_each(
            tasks.into_iter(),
            || (w.reader(), Vec::new(), Vec::new()),
            |(reader, panels, sums), task: Task<'_>| {
                let width = task.count.next_multiple_of(PANEL);
                sums.clear();
                sums.resize(padded * width, 0.0);
                for first in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - first);
                    panels.resize(width * depth, 0.0);
                    reader.read_panels(task.batch, (task.first, task.count), (first, depth), panels);
                    for (i, panel) in panels.chunks_exact(PANEL * depth).enumerate() {
                        for row in (0..padded).step_by(TILE) {
                            let elements = &rows[(task.batch * padded + row) * k + first..];
                            let tile = &mut sums[row * width + i * PANEL..];
                            multiply_tile(arch, Rows { elements, stride: k }, panel, tile, width);
                        }
                    }
                }
                task.store(sums, width, false, self.output());
            },
        );
        Ok(())
    }

    fn output(&self) -> Output {
        Output { m: self.sizes.m, swapped: self.swapped, element: self.element }
    }
}

/// How many rows of `W` a task takes: fewer where that gives every thread work.
fn block_rows(sizes: Sizes, threads: usize) -> usize {
    let mut block = 16 * TILE;
    while block > TILE && sizes.batch * sizes.n.div_ceil(block) < 4 * threads {
        block /= 2;
    }
    block
}

/// `X` as panels of [`PANEL`] rows, those of one depth next to each other: `[B][K / DEPTH][M /
/// PANEL][DEPTH][PANEL]`. Rows beyond the last are zero.
fn pack_x(x: &Bound<'_>, sizes: Sizes, workers: &Workers) -> Result<Box<[f32]>> {
    let Sizes { batch, m, k, .. } = sizes;
    let padded = m.next_multiple_of(PANEL);
    let mut packed = zeros(batch * padded * k)?;
    let mut pieces = Vec::new();
    let mut rest: &mut [f32] = &mut packed;
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
            for (i, panel) in piece.chunks_exact_mut(PANEL * depth).enumerate() {
                lines.clear();
                lines.resize(PANEL * depth, 0.0);
                for (row, line) in (i * PANEL..m).zip(lines.chunks_exact_mut(depth)) {
                    evaluator.write_f32((batch * m + row) * k + first, line);
                }
                interleave(lines, depth, panel);
            }
        },
    );
    Ok(packed)
}
