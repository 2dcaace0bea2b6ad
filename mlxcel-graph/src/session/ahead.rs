//! The programs that a step needs, and those likely to be needed next.

use std::sync::atomic::Ordering;

use mlxcel_core::{Control, Result};
use mlxcel_models::FedRows;

use super::GraphSession;
use super::sequence::Sequence;
use crate::executor::Executor;
use crate::plan::{Pass, PassRow, Pending, next_pass};
use crate::shape::{Outputs, ProgramShape};
use crate::shared::{IndependentRows, Shared};

/// A sequence that has filled all but this part of its length is near the end of it: then the programs of the
/// next length are made ahead. At 2,048 positions that is 512 tokens before they are needed.
const NEAR_END: usize = 4;

/// After so many passes for which a shorter length would have done, states are made shorter: seldom enough
/// that copying them takes no time worth mentioning, for any batch composition.
const SPARE_PASSES: u32 = 64;

/// Programs for short rows, alone or together, are compiled ahead once they would have saved this many
/// passes: a few prompts do not justify compiling.
const PADDED_PASSES: u32 = 4;

impl<E: Executor> GraphSession<E> {
    /// `pass` by a program for shorter rows, where its chunk is mostly padding, such a program is ready, and
    /// results are the same.
    pub(super) fn shortened(&self, pass: Pass, rows: &FedRows<'_>) -> Pass {
        let Shared { independent_rows, chunks, padded_passes, executor, .. } = &*self.shared;
        let capabilities = self.table.capabilities();
        if *independent_rows == IndependentRows::No || !capabilities.verification {
            return pass;
        }
        let Some(shorter) = chunks.shortened(&pass, capabilities.batch_rows) else { return pass };
        if padded_passes.load(Ordering::Relaxed) < PADDED_PASSES {
            padded_passes.fetch_add(1, Ordering::Relaxed);
            return pass;
        }
        match self.shape_to_run(&shorter, rows) {
            Ok(shape) if executor.prepare_ahead(&shape) => shorter,
            _ => pass,
        }
    }

    /// `pass` with further short rows, where the program for them is ready, and results are the same.
    pub(super) fn joined(&self, pass: Pass, pending: &[Pending], rows: &FedRows<'_>) -> Pass {
        let Shared { independent_rows, chunks, padded_passes, executor, .. } = &*self.shared;
        if *independent_rows == IndependentRows::No {
            return pass;
        }
        let Some(joined) = chunks.joined(&pass, pending, self.table.capabilities().batch_rows) else {
            return pass;
        };
        if padded_passes.load(Ordering::Relaxed) < PADDED_PASSES {
            padded_passes.fetch_add(1, Ordering::Relaxed);
            return pass;
        }
        match self.shape_to_run(&joined, rows) {
            Ok(shape) if executor.prepare_ahead(&shape) => joined,
            _ => pass,
        }
    }

    /// A part of `pass` whose program is ready, if that of `pass` is not: fewer of its rows, or less of its
    /// chunk where that gives the same results. What remains has passes of its own. If `announce`, the
    /// program of `pass` is compiled beside this. None if there is no need, or no such part; then the
    /// pass waits for its program.
    pub(super) fn by_ready_programs(&self, pass: &Pass, step: &FedRows<'_>, announce: bool) -> Option<Pass> {
        let executor = &self.shared.executor;
        let is_ready =
            |pass: &Pass| self.shape_to_run(pass, step).is_ok_and(|shape| executor.is_ready(&shape));
        // Other outputs depend on which rows a pass has.
        if pass.outputs != Outputs::Last || is_ready(pass) {
            return None;
        }
        let of = |rows: &[PassRow]| Pass { rows: rows.to_vec(), outputs: Outputs::Last };
        let fewer = (1..pass.rows.len()).rev().filter_map(|rows| Some(of(pass.rows.get(..rows)?)));
        let chunk = pass.rows.first().filter(|row| row.room > 1);
        let chunk = chunk.filter(|_| self.shared.independent_rows != IndependentRows::No);
        let shorter = chunk.into_iter().flat_map(|&row| {
            let rooms = self.shared.chunks.smaller_than(row.room);
            rooms.map(move |room| PassRow { room, tokens: row.tokens.min(room), ..row })
        });
        let part = fewer.chain(shorter.map(|row| of(&[row]))).find(is_ready)?;
        if announce && let Ok(shape) = self.shape_to_run(pass, step) {
            executor.prepare_ahead(&shape);
        }
        Some(part)
    }

    /// The shape of the program that `pass` is run by. States keep their length as a rule; where all of them
    /// have been longer than they need to be for a while, as after a pass with a long sequence, the least
    /// length is gone back to if its program is ready.
    pub(super) fn shape_to_run(&self, pass: &Pass, rows: &FedRows<'_>) -> Result<ProgramShape> {
        let states_of = |row: usize| self.table.get("step", rows[row].sequence()).ok();
        let shape = self.shape_of(pass, |row| states_of(row).map_or((0, 0), Sequence::extent))?;
        let is_spare = |row: &PassRow| {
            let states = states_of(row.row).and_then(|sequence| sequence.states.as_ref());
            states.is_none_or(|states| states.spare >= SPARE_PASSES)
        };
        if pass.rows.iter().all(is_spare) {
            let least = self.shape_of(pass, |row| states_of(row).map_or((0, 0), |own| (own.computed, 0)))?;
            if least.length < shape.length && self.shared.executor.prepare_ahead(&least) {
                return Ok(least);
            }
        }
        Ok(shape)
    }

    /// The shape of the program for `pass`; `extent` returns, for a pending row, how many positions its
    /// states hold, and the length that they are for.
    pub(super) fn shape_of(
        &self,
        pass: &Pass,
        extent: impl Fn(usize) -> (usize, usize),
    ) -> Result<ProgramShape> {
        let needed = pass.rows.iter().map(|row| {
            let (computed, allocated) = extent(row.row);
            allocated.max(computed + row.room)
        });
        Ok(ProgramShape {
            length: self.shared.length_for("step", needed.max().unwrap_or(0))?,
            rows: match self.shared.chunks.are_whole() {
                true => vec![pass.rows.iter().map(|row| row.room).sum()],
                false => pass.rows.iter().map(|row| row.room).collect(),
            },
            outputs: pass.outputs,
        })
    }

    /// Makes the programs of a step that takes several passes at once, so that they compile side by side.
    /// What fails here is tried again, and told, by the pass that needs it.
    pub(super) fn prepare_together(&mut self, rows: &FedRows<'_>, control: &Control<'_>) {
        let width = self.table.capabilities().batch_rows;
        let mut pending = self.pending(rows);
        if pending.len() <= width && pending.iter().all(|row| row.remaining <= 1) {
            return;
        }
        let mut extents: Vec<_> = rows
            .iter()
            .map(|row| self.table.get("step", row.sequence()).map_or((0, 0), Sequence::extent))
            .collect();
        let mut shapes = Vec::new();
        while let Some(pass) = next_pass(&pending, &self.shared.chunks, width) {
            let Ok(shape) = self.shape_of(&pass, |row| extents[row]) else { return };
            for row in &pass.rows {
                pending[row.row].remaining -= row.tokens;
                extents[row.row] = (extents[row.row].0 + row.tokens, shape.length);
            }
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        if shapes.len() > 1 && control.check("step").is_ok() {
            self.stats.compile_time +=
                self.shared.executor.prepare_together(&shapes, control.cancel).unwrap_or_default();
        }
    }

    /// Announces to the executor the programs that are likely needed after a pass of `shape` whose rows began
    /// at `positions`: where a row is near the
    /// end of this length, the programs of the next; behind a prompt chunk the decoding rows, which are ready
    /// at the least length alone.
    pub(super) fn prepare_following(&self, shape: &ProgramShape, positions: &[i32]) {
        let (executor, length) = (&self.shared.executor, shape.length);
        let rows_of = |first: usize| {
            let mut rows = vec![1; shape.rows.len()];
            rows[0] = first;
            rows
        };
        let has_chunk = shape.rows.iter().any(|&room| room > 1);
        let is_verified = shape.outputs == Outputs::Every
            && self.shared.chunks.verified().any(|room| shape.rows.iter().all(|&own| own == room));
        // Scores and embeddings are of prompts alone.
        let is_text = shape.outputs == Outputs::Last;
        if has_chunk && is_text && self.shared.lengths.buckets().first().is_some_and(|&least| least < length)
        {
            executor.prepare_ahead(&ProgramShape { rows: rows_of(1), ..shape.clone() });
        }
        let ends = positions.iter().zip(&shape.rows).map(|(&position, room)| position as usize + room);
        let is_near = ends.max().is_some_and(|end| end + length / NEAR_END >= length);
        if !is_near || self.table.capabilities().context <= length {
            return;
        }
        let Ok(next) = self.shared.length_for("step", length + 1) else { return };
        if next <= length {
            return;
        }
        if is_verified && self.table.capabilities().verification {
            executor.prepare_ahead(&ProgramShape { length: next, ..shape.clone() });
            let rows = vec![1; shape.rows.len()];
            executor.prepare_ahead(&ProgramShape { rows, length: next, outputs: Outputs::Last });
            return;
        }
        let chunks = self.shared.chunks.chosen(self.table.capabilities().context).into_iter();
        let chunks = chunks.map(|(chunk, _)| chunk).filter(|_| has_chunk);
        for first in is_text.then_some(1).into_iter().chain(chunks) {
            executor.prepare_ahead(&ProgramShape { rows: rows_of(first), length: next, ..*shape });
        }
    }
}
