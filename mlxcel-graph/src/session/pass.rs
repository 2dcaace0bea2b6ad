//! Runs a step: passes over the weights until every row has its result.

use mlxcel_core::{Control, Error, ErrorKind, Result, Row, StepOutput, TokenId};

use super::GraphSession;
use super::rows::{self, Stretch, Work, Works};
use crate::executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
use crate::model::Shared;
use crate::plan::{Pass, PassRow, next_pass};
use crate::shape::{Outputs, ProgramShape};

impl<E: Executor> GraphSession<E> {
    pub(super) fn run_step(
        &mut self,
        rows: &[Row<'_>],
        control: &Control<'_>,
        out: &mut StepOutput,
    ) -> Result<()> {
        let mut works: Works<'_> = self.table.begin(rows, out)?;
        while works.wait(control) {
            let mut begun = false;
            for work in works.iter_mut() {
                match self.begin_stretch(work) {
                    Ok(new) => begun |= new,
                    Err(error) => work.fail(error),
                }
            }
            if begun {
                self.prepare_together(&works, control);
            }
            let pending: Vec<_> = works.iter().map(rows::pending).collect();
            let width = self.table.capabilities().batch_rows;
            let Some(pass) = next_pass(&pending, &self.shared.chunks, width) else { break };
            let pass = self.shortened(pass, &works);
            self.run_pass(&pass, &mut works, control);
        }
        works.finish(out);
        Ok(())
    }

    /// Begins the next stretch of a row that stands between two. Where its tokens make the sequence so long that other frequencies
    /// hold for all of it, what has been computed is computed again. Whether it began one.
    fn begin_stretch(&mut self, work: &mut Work<'_>) -> Result<bool> {
        let Some(left) = rows::next_stretch(work) else { return Ok(false) };
        let sequence = self.table.get_mut("step", work.sequence())?;
        let position = sequence.position;
        let mut length = position + left;
        let draft_tokens = work.drafts_left();
        if rows::wants_every(work) || draft_tokens > 0 {
            // Draft tokens are computed as if fed one by one, what precedes them as a whole.
            let from = if draft_tokens > 0 { position + left - draft_tokens - 1 } else { position };
            let end = self.shared.epochs.end_after(from);
            length = end.map_or(length, |end| length.min(end));
        }
        sequence.enter(self.shared.epochs.at(length));
        work.work = Stretch::new(length - position, length, sequence.missing().to_vec());
        Ok(true)
    }

    /// Runs one pass; where that fails, its rows are answered with the error.
    fn run_pass(&mut self, pass: &Pass, works: &mut Works<'_>, control: &Control<'_>) {
        // Before the program runs, no sequence has changed: an error here leaves them as they were.
        let (shape, program, inputs) = match self.prepare_pass(pass, works, control) {
            Ok(prepared) => prepared,
            // A cancelled step ends for all of its rows; another failure for those of the pass.
            Err(error) if error.kind() == ErrorKind::Cancelled => return works.fail(&error),
            Err(error) => return pass.rows.iter().for_each(|row| works[row.pending].fail(error.clone())),
        };
        let mut wanted = Vec::new();
        let mut counts = Vec::with_capacity(pass.rows.len());
        for (row, outputs) in pass.rows.iter().zip(output_ranges(pass)) {
            let own = rows::wanted_rows(&works[row.pending], row.tokens, outputs);
            counts.push(own.len());
            wanted.extend(own);
        }
        match self.execute(pass, works, &program, &inputs, &wanted) {
            Ok(outputs) => {
                self.stats.passes += 1;
                self.stats.tokens += pass.rows.iter().map(|row| row.tokens as u64).sum::<u64>();
                self.stats.uploaded_bytes += inputs.bytes() as u64;
                let words = 2 * outputs.best.len() + outputs.values.iter().map(Vec::len).sum::<usize>();
                self.stats.read_back_bytes += 4 * words as u64;
                let mut values = outputs.values.into_iter();
                for ((row, range), count) in pass.rows.iter().zip(output_ranges(pass)).zip(counts) {
                    let own = values.by_ref().take(count).collect();
                    let best = outputs.best.get(range).unwrap_or_default();
                    self.absorb(row.tokens, &mut works[row.pending], best, own);
                }
                self.prepare_following(&shape, &inputs.positions);
            }
            Err(failure) if failure.has_begun() => {
                let error = failure.into_error();
                for row in &pass.rows {
                    self.table.fault(&mut works[row.pending], error.clone());
                }
            }
            Err(failure) => {
                let error = failure.into_error();
                pass.rows.iter().for_each(|row| works[row.pending].fail(error.clone()));
            }
        }
    }

    /// Processes the result of a pass that fed the next `tokens` of a row.
    fn absorb(&mut self, tokens: usize, work: &mut Work<'_>, best: &[(TokenId, f32)], values: Vec<Vec<f32>>) {
        let result = rows::result(work, tokens, best, values);
        let (_, new) = rows::next_tokens(work, tokens);
        if let Ok(sequence) = self.table.get_mut("step", work.sequence()) {
            sequence.advance(tokens, new, self.shared.epochs.depend_on_length());
        }
        work.work.feed(tokens);
        self.table.absorb(work, new.len(), result);
    }

    /// Everything that can fail without harm: the program is made, the states grow, the inputs are gathered.
    fn prepare_pass(
        &mut self,
        pass: &Pass,
        works: &Works<'_>,
        control: &Control<'_>,
    ) -> Result<(ProgramShape, E::Program, StepInputs)> {
        let shape = self.shape_to_run(pass, works)?;
        let Prepared { program, compile_time } = self.shared.executor.prepare(&shape, control.cancel)?;
        self.stats.compile_time += compile_time;
        let mut inputs =
            StepInputs { rotary: vec![Default::default(); self.shared.ropes.len()], ..StepInputs::default() };
        for row in &pass.rows {
            let work = &works[row.pending];
            let sequence = self.table.get_mut("step", work.sequence())?;
            self.shared.resize(sequence, shape.length)?;
            sequence.begin_writing(row.room, self.shared.length_for("step", sequence.computed + row.room)?);
            gather(&self.shared, row, work, sequence.computed, &mut inputs);
        }
        Ok((shape, program, inputs))
    }

    fn execute(
        &mut self,
        pass: &Pass,
        works: &Works<'_>,
        program: &E::Program,
        inputs: &StepInputs,
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let sequences = pass.rows.iter().map(|row| works[row.pending].sequence());
        let sequences = self.table.get_all_mut("step", sequences).map_err(RunError::before)?;
        let states = sequences.into_iter().map(|sequence| {
            let missing = || RunError::before(Error::new(ErrorKind::Internal, "step", "a row has no state"));
            sequence.states.as_mut().map(|states| states.groups.as_mut_slice()).ok_or_else(missing)
        });
        let mut states = states.collect::<Result<Vec<_>, _>>()?;
        self.shared.executor.run(program, inputs, &mut states, wanted)
    }
}

/// Adds the inputs of one row: its tokens from `position` on, padded to the room that the program has, and their rotary tables.
fn gather<E>(shared: &Shared<E>, row: &PassRow, work: &Work<'_>, position: usize, inputs: &mut StepInputs) {
    let (again, own) = rows::next_tokens(work, row.tokens);
    inputs.tokens.extend(again.iter().chain(own).map(|&token| token as i32));
    inputs.last.push(inputs.tokens.len() as i32 - 1);
    inputs.tokens.extend(std::iter::repeat_n(0, row.room - row.tokens));
    inputs.positions.push(position as i32);
    for (rope, (cos, sin)) in shared.ropes.iter().zip(&mut inputs.rotary) {
        let half = rope.rotary_dim / 2;
        for offset in 0..row.room {
            let start = cos.len();
            cos.resize(start + half, 0.0);
            sin.resize(start + half, 0.0);
            rope.cos_sin(position + offset, work.work.length, &mut cos[start..], &mut sin[start..]);
        }
    }
}

/// The output rows that belong to each row of a pass: padding gives none.
fn output_ranges(pass: &Pass) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    pass.rows.iter().scan(0, |next, row| {
        let start = *next;
        let (outputs, step) = match pass.outputs {
            Outputs::Last => (1, 1),
            Outputs::Every | Outputs::Hidden => (row.tokens, row.room),
        };
        *next += step;
        Some(start..start + outputs)
    })
}
