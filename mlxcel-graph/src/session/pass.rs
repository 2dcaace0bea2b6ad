//! Running a step: pass after pass over the weights until every row has its answer.

use std::collections::BTreeMap;

use mlxcel_core::{
    Control, Error, ErrorKind, InferenceSession, Result, Row, SequenceId, StepOutput, check_rows,
};

use super::GraphSession;
use super::rows::Work;
use super::sequence::Sequence;
use crate::executor::{Executor, RunError, StepInputs, StepOutputs};
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
        out.clear();
        let vocabulary = self.shared.info.vocabulary_size;
        let checked = check_rows(rows, &self.capabilities, vocabulary, |sequence| self.state(sequence).ok())?;
        let mut works: Vec<Work<'_>> =
            rows.iter().zip(checked).map(|(row, checked)| self.begin(*row, checked)).collect();
        loop {
            let pending: Vec<_> = works.iter().map(Work::pending).collect();
            let Some(pass) = next_pass(&pending, &self.shared.chunks, self.capabilities.batch_rows) else {
                break;
            };
            self.run_pass(&pass, &mut works, control);
        }
        for work in works {
            out.push(work.answer.unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Internal, "step", "a row was left without an answer"))
            }));
        }
        Ok(())
    }

    /// What is to be done for a row. Where its tokens make the sequence so long that other frequencies hold for all of it, what has
    /// been computed is computed again.
    fn begin<'r>(&mut self, row: Row<'r>, refused: Result<()>) -> Work<'r> {
        let mut work = Work::new(row, refused);
        if work.answer.is_none()
            && let Some(sequence) = self.sequences.get_mut(&row.sequence)
        {
            work.length = sequence.position + row.tokens.len();
            sequence.enter(self.shared.epochs.at(work.length));
            work.again = sequence.missing().to_vec();
        }
        work
    }

    /// Runs one pass; where that fails, its rows are answered with the error.
    fn run_pass(&mut self, pass: &Pass, works: &mut [Work<'_>], control: &Control<'_>) {
        // Before the program runs, no sequence has changed: an error here leaves them as they were.
        let prepared = control.check("step").and_then(|()| self.prepare_pass(pass, works, control));
        let (shape, inputs) = match prepared {
            Ok(prepared) => prepared,
            // A cancelled step ends for all of its rows; another failure for those of the pass.
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                let unanswered = works.iter_mut().filter(|work| work.answer.is_none());
                return unanswered.for_each(|work| work.answer = Some(Err(error.clone())));
            }
            Err(error) => return answer_all(pass, works, error),
        };
        let mut logits = Vec::new();
        let mut counts = Vec::with_capacity(pass.rows.len());
        for (row, outputs) in pass.rows.iter().zip(output_ranges(pass)) {
            let wanted = works[row.pending].wanted_logits(row.tokens, outputs);
            counts.push(wanted.len());
            logits.extend(wanted);
        }
        match self.execute(pass, works, &shape, &inputs, &logits) {
            Ok(outputs) => {
                self.stats.passes += 1;
                self.stats.tokens += pass.rows.iter().map(|row| row.tokens as u64).sum::<u64>();
                self.stats.uploaded_bytes += inputs.bytes() as u64;
                let words = 2 * outputs.best.len() + outputs.logits.iter().map(Vec::len).sum::<usize>();
                self.stats.read_back_bytes += 4 * words as u64;
                let mut logits = outputs.logits.into_iter();
                for ((row, range), count) in pass.rows.iter().zip(output_ranges(pass)).zip(counts) {
                    let work = &mut works[row.pending];
                    let own: Vec<_> = logits.by_ref().take(count).collect();
                    let best = outputs.best.get(range.end - 1).copied().unwrap_or((0, f32::NAN));
                    let (_, new) = work.next_tokens(row.tokens);
                    let sequence = self.sequences.get_mut(&work.row.sequence);
                    work.absorb(row.tokens, best, own);
                    if let Some(sequence) = sequence {
                        sequence.advance(row.tokens, new, self.shared.epochs.depend_on_length());
                        // What gave such logits gives no better ones later.
                        if work.answer.as_ref().is_some_and(is_fault) {
                            sequence.poison();
                        }
                    }
                }
            }
            Err(failure) => {
                for row in pass.rows.iter().filter(|_| failure.has_begun()) {
                    if let Some(sequence) = self.sequences.get_mut(&works[row.pending].row.sequence) {
                        sequence.poison();
                    }
                }
                answer_all(pass, works, failure.into_error());
            }
        }
    }

    /// Everything that can fail without harm: the program is made, the states grow, the inputs are gathered.
    fn prepare_pass(
        &mut self,
        pass: &Pass,
        works: &[Work<'_>],
        control: &Control<'_>,
    ) -> Result<(ProgramShape, StepInputs)> {
        let mut positions = 0;
        for row in &pass.rows {
            let sequence = self.sequence("step", works[row.pending].row.sequence)?;
            let allocated = sequence.states.as_ref().map_or(0, |states| states.length);
            positions = positions.max(sequence.computed + row.room).max(allocated);
        }
        let shape = ProgramShape {
            rows: pass.rows.iter().map(|row| row.room).collect(),
            length: self.length_for("step", positions)?,
            outputs: pass.outputs,
        };
        self.stats.compile_time += self.shared.executor.prepare(&shape, control.cancel)?;
        let mut inputs =
            StepInputs { rotary: vec![Default::default(); self.shared.ropes.len()], ..StepInputs::default() };
        for row in &pass.rows {
            let work = &works[row.pending];
            if let Some(sequence) = self.sequences.get_mut(&work.row.sequence) {
                self.shared.resize(sequence, shape.length)?;
                gather(&self.shared, row, work, sequence.computed, &mut inputs);
            }
        }
        Ok((shape, inputs))
    }

    fn execute(
        &mut self,
        pass: &Pass,
        works: &[Work<'_>],
        shape: &ProgramShape,
        inputs: &StepInputs,
        logits: &[usize],
    ) -> Result<StepOutputs, RunError> {
        // The map hands out its sequences in its own order; the program wants the pass's.
        let mut by_id: BTreeMap<SequenceId, &mut Sequence<E::State>> =
            self.sequences.iter_mut().map(|(&id, sequence)| (id, sequence)).collect();
        let mut states = Vec::with_capacity(pass.rows.len());
        for row in &pass.rows {
            let sequence = by_id.remove(&works[row.pending].row.sequence);
            let own = sequence.and_then(|sequence| sequence.states.as_mut());
            let missing = || Error::new(ErrorKind::Internal, "step", "a row has no states");
            let own = own.ok_or_else(missing).map_err(RunError::before)?;
            states.push(own.groups.as_mut_slice());
        }
        self.shared.executor.run(shape, inputs, &mut states, logits)
    }
}

/// Whether an answer is the fault of what was computed, and not of what was asked.
fn is_fault<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Device)
}

/// Adds the inputs of one row: its tokens from `position` on, padded to the room that the program has, and their rotary tables.
fn gather<E>(shared: &Shared<E>, row: &PassRow, work: &Work<'_>, position: usize, inputs: &mut StepInputs) {
    let (again, own) = work.next_tokens(row.tokens);
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
            rope.cos_sin(position + offset, work.length, &mut cos[start..], &mut sin[start..]);
        }
    }
}

/// The output rows that belong to each row of a pass: padding gives none.
fn output_ranges(pass: &Pass) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    pass.rows.iter().scan(0, |next, row| {
        let start = *next;
        let (outputs, step) = match pass.outputs {
            Outputs::Last => (1, 1),
            Outputs::Every => (row.tokens, row.room),
        };
        *next += step;
        Some(start..start + outputs)
    })
}

fn answer_all(pass: &Pass, works: &mut [Work<'_>], error: Error) {
    for row in &pass.rows {
        works[row.pending].answer = Some(Err(error.clone()));
    }
}
