//! The set of programs that a session can use, for compiling ahead of time.

use mlxcel_core::{Prepare, Result};
use mlxcel_models::Decoder;

use crate::model::GraphModelOptions;
use crate::plan::{Chunks, JOINED};
use crate::shape::{Outputs, ProgramShape};
use crate::state::bounded_room;

/// The programs that are compiled without waiting for a step to need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedPrograms {
    /// Those that loading waits for.
    pub at_load: Vec<ProgramShape>,
    /// Those compiled in the background while the model is already used, most urgent first; engines without
    /// background compilation compile them at load.
    pub in_background: Vec<ProgramShape>,
}

impl GraphModelOptions {
    /// The programs that every generation of `decoder` starts with: a prompt chunk of each size, the largest
    /// first, and a decoding row, in the smallest KV-length bucket. Of an encoder, the program of the
    /// shortest texts.
    ///
    /// # Errors
    ///
    /// The errors of [`programs`](Self::programs).
    pub fn first_programs(&self, decoder: &Decoder) -> Result<Vec<ProgramShape>> {
        self.check()?;
        if decoder.is_bidirectional() {
            return Ok(self.programs(decoder)?.into_iter().take(1).collect());
        }
        let lengths = self.lengths_for(decoder)?;
        let chunks = Chunks::new(&self.chunks).chosen(self.capacity_for(decoder)?);
        let sizes = chunks.iter().rev().map(|&(size, _)| size).chain([1]);
        let shape = |tokens| ProgramShape {
            rows: vec![tokens],
            length: lengths.holding(tokens).unwrap_or(lengths.buckets()[0]),
            outputs: Outputs::Last,
        };
        Ok(sizes.map(shape).collect())
    }

    /// The programs to compile for a model of `decoder` before they are needed. With [`Prepare::OnDemand`]
    /// loading waits for the smallest prompt chunk and a decoding row, which are enough for any prompt up
    /// to the size of that chunk.
    ///
    /// # Errors
    ///
    /// The errors of [`programs`](Self::programs).
    pub fn prepared_programs(&self, decoder: &Decoder, prepare: Prepare) -> Result<PreparedPrograms> {
        let at_load = match prepare {
            Prepare::Generation => {
                Self { every_position: false, verification: false, hidden_states: false, ..self.clone() }
                    .programs(decoder)?
            }
            Prepare::Everything => self.programs(decoder)?,
            _ => {
                let mut in_background = self.first_programs(decoder)?;
                let at_load = in_background.split_off(in_background.len().saturating_sub(2));
                return Ok(PreparedPrograms { at_load, in_background });
            }
        };
        Ok(PreparedPrograms { at_load, in_background: Vec::new() })
    }

    /// Every program that sessions with these options can use, each once, shorter ones first.
    ///
    /// A pass has at most one chunk, before the decoding rows. So for at most `n` rows there are, per
    /// KV-length bucket, `n` programs of decoding rows and `n` with a chunk of each size; with
    /// `every_position`, as many again with a chunk and results at every position; with `verification`,
    /// those of equal short rows; with `hidden_states`, a chunk of each size alone, and a few numbers of
    /// single tokens. Passes that short texts share are not among them: without such programs each text
    /// has a pass of its own. An encoder has a program for each size of texts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) for options out of range.
    pub fn programs(&self, decoder: &Decoder) -> Result<Vec<ProgramShape>> {
        self.check()?;
        let capacity = self.capacity_for(decoder)?;
        let lengths = self.lengths_for(decoder)?;
        if decoder.is_bidirectional() {
            let chunks = self.chunks_for(decoder)?;
            let shape =
                |&size: &usize| ProgramShape { rows: vec![size], length: capacity, outputs: Outputs::Hidden };
            return Ok(chunks.sizes().iter().map(shape).collect());
        }
        let all = Chunks::new(&self.chunks);
        let chunks = all.chosen(capacity);
        let verified: Vec<_> = all
            .verified_together(self.width())
            .filter(|&(room, _)| self.verification && room / 2 < capacity)
            .collect();
        // A chunk is written whole, its padding too, and the least prompt for which it is chosen may be the
        // last of a sequence. A row that decodes keeps the cache that a chunk has grown.
        // What shares a pass has the room of the longest.
        let least = |room: usize, most: usize| if most > 1 { 1 } else { room / 2 + 1 };
        let rooms = verified.iter().map(|&(room, most)| (room, least(room, most)));
        let rooms = chunks.iter().copied().chain(rooms);
        let farthest = rooms.map(|(size, least)| capacity - least + size).chain([capacity]).max();
        let bound = bounded_room(decoder, Chunks::new(&self.chunks).largest()).unwrap_or(usize::MAX);
        let last = farthest.and_then(|farthest| lengths.holding(farthest.min(bound))).unwrap_or(usize::MAX);
        let mut programs = Vec::new();
        for &length in lengths.buckets().iter().filter(|&&length| length <= last) {
            let mut add = |rows: Vec<usize>, outputs| programs.push(ProgramShape { rows, length, outputs });
            for outputs in self.outputs().filter(|&outputs| outputs != Outputs::Every) {
                let may_share =
                    |rows: usize| outputs != Outputs::Hidden || rows == 1 || JOINED.contains(&rows);
                (1..=self.width())
                    .filter(|&rows| may_share(rows))
                    .for_each(|rows| add(vec![1; rows], outputs));
            }
            for &(room, most) in verified.iter().filter(|&&(room, _)| room <= length) {
                // One alone is that of a prompt chunk of this size.
                let known = self.every_position && chunks.iter().any(|&(chunk, _)| chunk == room);
                (1 + usize::from(known)..=most).for_each(|rows| add(vec![room; rows], Outputs::Every));
            }
            for &(chunk, _) in chunks.iter().filter(|&&(chunk, _)| chunk <= length) {
                for outputs in self.outputs() {
                    let beside = if outputs == Outputs::Hidden { 1 } else { self.width() };
                    for decoding in 0..beside {
                        let mut rows = vec![chunk];
                        rows.resize(1 + decoding, 1);
                        add(rows, outputs);
                    }
                }
            }
        }
        Ok(programs)
    }

    /// What programs may be asked to give.
    fn outputs(&self) -> impl Iterator<Item = Outputs> {
        let every = self.every_position.then_some(Outputs::Every);
        let hidden = self.hidden_states.then_some(Outputs::Hidden);
        [Some(Outputs::Last), every, hidden].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
