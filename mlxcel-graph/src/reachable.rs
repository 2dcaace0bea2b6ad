//! Which programs a session can ask for: what has to be made beforehand where nothing can be compiled later.

use mlxcel_core::Result;
use mlxcel_models::Decoder;

use crate::model::GraphModelOptions;
use crate::shape::{Outputs, ProgramShape};

impl GraphModelOptions {
    /// The programs that every generation of `decoder` begins with, worth making while loading: a prompt chunk and a
    /// decoding row at the least length.
    ///
    /// # Errors
    ///
    /// Those of [`lengths_for`](Self::lengths_for).
    pub fn first_programs(&self, decoder: &Decoder) -> Result<[ProgramShape; 2]> {
        let lengths = self.lengths_for(decoder)?;
        Ok([self.chunk, 1].map(|tokens| ProgramShape {
            rows: vec![tokens],
            length: lengths.holding(tokens).unwrap_or(lengths.rungs()[0]),
            outputs: Outputs::Last,
        }))
    }

    /// Every program that sessions with these options can ask for, each once, shorter ones first: a session never needs
    /// another, whatever is asked of it and in whatever order.
    ///
    /// A pass has at most one chunk, in front of the decoding rows, and only a chunk has positions before its last; so of
    /// `n` rows at most there are, at each length, `n` programs of decoding rows, `n` with a chunk, and as many with a chunk and
    /// results at every position, where those may be asked for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) for options out of range.
    pub fn programs(&self, decoder: &Decoder) -> Result<Vec<ProgramShape>> {
        self.check()?;
        let capacity = self.capacity_for(decoder)?;
        let lengths = self.lengths_for(decoder)?;
        // A chunk row has two tokens at least; it is written whole, its padding too. A row that decodes keeps the cache that a
        // chunk has grown.
        let farthest = if capacity > 1 { capacity - 2 + self.chunk } else { capacity };
        let last = lengths.holding(farthest).unwrap_or(usize::MAX);
        let mut programs = Vec::new();
        for &length in lengths.rungs().iter().filter(|&&length| length <= last) {
            let mut add = |rows: Vec<usize>, outputs| programs.push(ProgramShape { rows, length, outputs });
            (1..=self.width()).for_each(|rows| add(vec![1; rows], Outputs::Last));
            if capacity == 1 || length < self.chunk {
                continue;
            }
            for outputs in [Outputs::Last, Outputs::Every] {
                if outputs == Outputs::Every && !self.every_position {
                    continue;
                }
                for decoding in 0..self.width() {
                    let mut rows = vec![self.chunk];
                    rows.resize(1 + decoding, 1);
                    add(rows, outputs);
                }
            }
        }
        Ok(programs)
    }
}

#[cfg(test)]
mod tests;
