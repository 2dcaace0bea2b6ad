//! Runs a step: passes over the weights until every row has its result.

use mlxcel_core::{Control, Error, ErrorKind, Positions, Result, Row, StepOutput, TokenId};
use mlxcel_models::{FedRow, FedRows, Feed};

use super::GraphSession;
use super::rows;
use super::sequence::Sequence;
use crate::executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
use crate::plan::{Pass, PassRow, next_pass};
use crate::shape::{Outputs, ProgramShape};
use crate::shared::Shared;

impl<E: Executor> GraphSession<E> {
    pub(super) fn run_step(
        &mut self,
        rows: &[Row<'_>],
        control: &Control<'_>,
        out: &mut StepOutput,
    ) -> Result<()> {
        let mut rows: FedRows<'_> = self.table.begin(rows, out)?;
        let mut divided = false;
        while rows.wait(control) {
            let mut begun = false;
            for row in rows.iter_mut().filter(|row| Feed::is_due(row)) {
                match self.begin_feed(row) {
                    Ok(()) => begun = true,
                    Err(error) => row.fail(error),
                }
            }
            if begun && !control.prefer_ready {
                self.prepare_together(&rows, control);
            }
            let pending = self.pending(&rows);
            let width = self.table.capabilities().batch_rows;
            let Some(pass) = next_pass(&pending, &self.shared.chunks, width) else { break };
            let pass = self.joined(pass, &pending, &rows);
            let pass = self.shortened(pass, &rows);
            let pass = if control.prefer_ready {
                let part = self.by_ready_programs(&pass, &rows, !divided);
                divided |= part.is_some();
                part.unwrap_or(pass)
            } else {
                pass
            };
            self.run_pass(&pass, &mut rows, control);
        }
        rows.finish(out);
        Ok(())
    }

    /// Plans the next feed of a row. States of another epoch are discarded.
    fn begin_feed(&mut self, row: &mut FedRow<'_>) -> Result<()> {
        let sequence = self.table.get_mut("step", row.sequence())?;
        row.progress = Feed::next(row, sequence.held(), &self.shared.epochs);
        sequence.enter(row.progress.epoch);
        Ok(())
    }

    /// Runs one pass; where that fails, its rows are answered with the error.
    fn run_pass(&mut self, pass: &Pass, rows: &mut FedRows<'_>, control: &Control<'_>) {
        // Before the program runs, no sequence has changed: an error here leaves them as they were.
        let (shape, program, inputs) = match self.prepare_pass(pass, rows, control) {
            Ok(prepared) => prepared,
            // A cancelled step ends for all of its rows; another failure for those of the pass.
            Err(error) if error.kind() == ErrorKind::Cancelled => return rows.fail(&error),
            Err(error) => return pass.rows.iter().for_each(|row| rows[row.row].fail(error.clone())),
        };
        let mut wanted = Vec::new();
        let mut counts = Vec::with_capacity(pass.rows.len());
        for (row, outputs) in pass.rows.iter().zip(output_ranges(pass)) {
            let own = rows::wanted_rows(&rows[row.row], row.tokens, outputs);
            counts.push(own.len());
            wanted.extend(own);
        }
        match self.execute(pass, rows, &program, &inputs, &wanted) {
            Ok(mut outputs) => {
                self.stats.passes += 1;
                self.stats.uploaded_bytes += inputs.bytes() as u64;
                let values = outputs.values.iter().map(Vec::len).sum::<usize>();
                let words = 2 * outputs.best.len() + values + outputs.states.len();
                self.stats.read_back_bytes += 4 * words as u64;
                if let Some(tokens) =
                    self.shared.head_tokens.as_deref().filter(|_| pass.outputs != Outputs::Hidden)
                {
                    spread(&mut outputs, tokens, self.shared.info.vocabulary_size);
                }
                let mut values = outputs.values.into_iter();
                self.return_states(pass, rows, &outputs.states);
                for ((row, range), count) in pass.rows.iter().zip(output_ranges(pass)).zip(counts) {
                    let own = values.by_ref().take(count).collect();
                    let best = outputs.best.get(range).unwrap_or_default();
                    self.absorb(row.tokens, &mut rows[row.row], best, own);
                }
                self.prepare_following(&shape, &inputs.positions);
            }
            Err(failure) if failure.has_begun() => {
                let error = failure.into_error();
                for row in &pass.rows {
                    self.table.fault(&mut rows[row.row], error.clone());
                }
            }
            Err(failure) => {
                let error = failure.into_error();
                pass.rows.iter().for_each(|row| rows[row.row].fail(error.clone()));
            }
        }
    }

    /// Hands the hidden states of a pass (`[tokens, hidden]`, padding included) to the rows that want them: of
    /// their own tokens, and not of those that are computed again.
    fn return_states(&self, pass: &Pass, rows: &mut FedRows<'_>, states: &[f32]) {
        let width = self.shared.capabilities.output_states.unwrap_or_default();
        let mut start = 0;
        for &PassRow { row, tokens, room } in &pass.rows {
            let row = &mut rows[row];
            let own = row.progress.new_within(tokens);
            let first = start + tokens - own;
            row.add_states(states.get(first * width..(first + own) * width).unwrap_or_default());
            start += room;
        }
    }

    /// Processes the result of a pass that fed the next `tokens` of a row.
    fn absorb(
        &mut self,
        tokens: usize,
        row: &mut FedRow<'_>,
        best: &[(TokenId, f32)],
        values: Vec<Vec<f32>>,
    ) {
        let result = rows::result(row, tokens, best, values);
        let new = row.next(row.progress.new_within(tokens));
        if let Ok(sequence) = self.table.get_mut("step", row.sequence()) {
            let may_return = match row.want().positions {
                Positions::Drafts(_) => self.shared.remembers(),
                _ => self.shared.epochs.depend_on_length(),
            };
            sequence.advance(tokens, new, may_return);
        }
        row.progress.advance(tokens);
        self.stats.tokens += new.len() as u64;
        self.table.absorb(row, new.len(), result);
    }

    /// Everything that can fail without harm: the program is made, the states grow, the inputs are gathered.
    fn prepare_pass(
        &mut self,
        pass: &Pass,
        rows: &FedRows<'_>,
        control: &Control<'_>,
    ) -> Result<(ProgramShape, E::Program, StepInputs)> {
        let shape = self.shape_to_run(pass, rows)?;
        let Prepared { program, compile_time } = self.shared.executor.prepare(&shape, control.cancel)?;
        self.stats.compile_time += compile_time;
        let mut inputs =
            StepInputs { rotary: vec![Default::default(); self.shared.ropes.len()], ..StepInputs::default() };
        for row in &pass.rows {
            let fed = &rows[row.row];
            let sequence = self.table.get_mut("step", fed.sequence())?;
            self.shared.resize(sequence, shape.length)?;
            let next = sequence.computed..sequence.computed + row.tokens;
            if let Some(drafts) = fed.want().drafts()
                && !self.shared.capabilities.rewind
                && fed.first_draft(sequence.position).is_some_and(|first| next.contains(&first))
            {
                self.shared.keep(sequence, drafts)?;
            }
            sequence.begin_writing(row.room, self.shared.length_for("step", sequence.computed + row.room)?);
            if let Some(room) = &self.shared.adapters {
                inputs.adapters.push(room.slot(sequence.options.adapter.as_ref())?);
            }
            gather(&self.shared, row, fed, sequence, &mut inputs);
        }
        Ok((shape, program, inputs))
    }

    fn execute(
        &mut self,
        pass: &Pass,
        rows: &FedRows<'_>,
        program: &E::Program,
        inputs: &StepInputs,
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let sequences = pass.rows.iter().map(|row| rows[row.row].sequence());
        let sequences = self.table.get_all_mut("step", sequences).map_err(RunError::before)?;
        let states = sequences.into_iter().map(|sequence| {
            let missing = || RunError::before(Error::new(ErrorKind::Internal, "step", "a row has no state"));
            sequence.states.as_mut().map(|states| states.groups.as_mut_slice()).ok_or_else(missing)
        });
        let mut states = states.collect::<Result<Vec<_>, _>>()?;
        self.shared.executor.run(program, inputs, &mut states, wanted)
    }
}

/// Makes logits of a part of the vocabulary, of which `tokens` has the token of each, those of all of it.
fn spread(outputs: &mut StepOutputs, tokens: &[TokenId], vocabulary: usize) {
    for (best, _) in &mut outputs.best {
        *best = tokens.get(*best as usize).copied().unwrap_or_default();
    }
    for values in &mut outputs.values {
        let mut all = vec![f32::NEG_INFINITY; vocabulary];
        for (&token, &value) in tokens.iter().zip(&*values) {
            if let Some(own) = all.get_mut(token as usize) {
                *own = value;
            }
        }
        *values = all;
    }
}

/// Adds the inputs of one row: its next tokens, padded to the room that the program has, and their rotary
/// tables.
fn gather<E: Executor>(
    shared: &Shared<E>,
    row: &PassRow,
    fed: &FedRow<'_>,
    sequence: &Sequence<E::State>,
    inputs: &mut StepInputs,
) {
    let (feed, position) = (&fed.progress, sequence.computed);
    let again = sequence.lacking(feed.recomputed_within(row.tokens));
    let tokens = again.iter().chain(fed.next(feed.new_within(row.tokens)));
    inputs.tokens.extend(tokens.map(|&token| token as i32));
    inputs.last.push(inputs.tokens.len() as i32 - 1);
    inputs.tokens.extend(std::iter::repeat_n(0, row.room - row.tokens));
    if shared.capabilities.token_types > 0 {
        let types = fed.next_types(feed.new_within(row.tokens));
        inputs.types.extend(types.iter().map(|&own| i32::from(own)));
        inputs.types.resize(inputs.tokens.len(), 0);
    }
    if let Some(width) = shared.capabilities.input_states {
        // Draft heads compute no token again: they can be rewound to every position.
        inputs.states.extend_from_slice(fed.next_states(feed.new_within(row.tokens)));
        inputs.states.resize(inputs.tokens.len() * width, 0.0);
    }
    if shared.chunks.are_whole() {
        let next = inputs.firsts.len();
        inputs.firsts.resize(next + row.tokens, next as i32);
        let padding = inputs.firsts.len()..inputs.tokens.len();
        inputs.firsts.extend(padding.map(|place| place as i32));
        // One row of the program has all texts.
        inputs.positions.clear();
        inputs.last.drain(..inputs.last.len() - 1);
    }
    inputs.positions.push(position as i32);
    for (rope, (cos, sin)) in shared.ropes.iter().zip(&mut inputs.rotary) {
        let half = rope.rotary_dim / 2;
        for offset in 0..row.room {
            let start = cos.len();
            cos.resize(start + half, 0.0);
            sin.resize(start + half, 0.0);
            rope.cos_sin(position + offset, feed.length, &mut cos[start..], &mut sin[start..]);
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
