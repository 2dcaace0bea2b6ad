//! The payload of snapshots.
//!
//! The position, a little-endian word of 64 bits, since states need not tell it by their size. Then the
//! states of all groups in their order, each as [`Executor::read`] gives it; none where nothing has been
//! computed. Where states may have to be computed again, before them, in little-endian words of 32 bits: the
//! number of the frequencies that they were computed with, how many tokens they hold, and the tokens: all where
//! that is for the sequence's length, and elsewhere those that the states do not hold.

use mlxcel_core::{Error, ErrorKind, Result, TokenId};

use super::sequence::{Sequence, States};
use crate::executor::Executor;
use crate::shared::Shared;
use crate::state::StateLayout;

const WORD: usize = 4;

/// The most bytes that a payload has, of a sequence of up to `capacity` tokens.
pub(crate) fn most_bytes(layouts: &[StateLayout], capacity: usize) -> u64 {
    let words = capacity.saturating_add(2).saturating_mul(WORD).saturating_add(size_of::<u64>());
    layouts.iter().fold(words as u64, |sum, layout| sum.saturating_add(layout.bytes(capacity) as u64))
}

impl<E: Executor> Shared<E> {
    /// What a snapshot of `sequence` holds.
    pub(super) fn pack(&self, sequence: &Sequence<E::State>) -> Result<Vec<u8>> {
        let mut payload = Vec::new();
        let words = size_of::<u64>() + WORD * (2 + sequence.tokens.len());
        let bytes = words + self.state_bytes(sequence.computed).sum::<usize>();
        payload.try_reserve_exact(bytes).map_err(|_| Error::out_of_memory("snapshot", bytes))?;
        payload.extend_from_slice(&(sequence.position as u64).to_le_bytes());
        if self.remembers() {
            let numbers = [sequence.epoch as u32, sequence.computed as u32];
            let told = self.told(sequence.computed)..sequence.position;
            let words = numbers.iter().chain(sequence.lacking(told));
            payload.extend(words.flat_map(|word| word.to_le_bytes()));
        }
        if let Some(States { groups, length, .. }) =
            sequence.states.as_ref().filter(|_| sequence.computed > 0)
        {
            for (layout, state) in self.layouts.iter().zip(groups) {
                payload.extend(self.executor.read(layout, state, *length, sequence.computed)?);
            }
        }
        Ok(payload)
    }

    /// The sequence of `position` tokens that `payload` holds; `length_for` chooses the length of its states.
    pub(super) fn unpack(
        &self,
        position: usize,
        payload: &[u8],
        length_for: impl Fn(usize) -> Result<usize>,
    ) -> Result<Sequence<E::State>> {
        let mut sequence =
            Sequence { position, computed: position, remembered: position, ..Sequence::empty() };
        let Some((told, mut rest)) = payload.split_first_chunk() else {
            return Err(wrong_size(payload, size_of::<u64>()));
        };
        if u64::from_le_bytes(*told) != position as u64 {
            let message = "the snapshot's payload has another position";
            return Err(Error::new(ErrorKind::Corrupt, "restore", message).with_context("position", position));
        }
        if self.remembers() {
            let mut words = |count: usize| {
                let bytes = rest.split_off(..count * WORD);
                let bytes =
                    bytes.ok_or_else(|| wrong_size(payload, size_of::<u64>() + (2 + position) * WORD))?;
                let words = bytes.as_chunks::<WORD>().0;
                Ok::<_, Error>(words.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>())
            };
            let numbers = words(2)?;
            (sequence.epoch, sequence.computed) = (numbers[0] as usize, numbers[1] as usize);
            sequence.remembered = self.told(sequence.computed);
            sequence.tokens = words(position.saturating_sub(sequence.remembered))?;
            self.check_tokens(&sequence)?;
        }
        let computed = sequence.computed;
        let expected: usize = self.state_bytes(computed).sum();
        if rest.len() != expected {
            return Err(wrong_size(payload, payload.len() - rest.len() + expected));
        }
        if computed > 0 {
            let length = length_for(computed)?;
            let mut groups = Vec::with_capacity(self.layouts.len());
            for (layout, bytes) in self.layouts.iter().zip(self.state_bytes(computed)) {
                let mut state = self.executor.allocate(layout, length)?;
                let (own, behind) = rest.split_at(bytes);
                self.executor.write(layout, &mut state, length, computed, own)?;
                rest = behind;
                groups.push(state);
            }
            sequence.states = Some(States { groups, length, written: computed, spare: 0 });
        }
        Ok(sequence)
    }

    /// The position from which on a payload has the tokens of a sequence with this many `computed`.
    fn told(&self, computed: usize) -> usize {
        if self.epochs.depend_on_length() { 0 } else { computed }
    }

    /// The bytes of each group's state of `computed` tokens.
    fn state_bytes(&self, computed: usize) -> impl Iterator<Item = usize> {
        let layouts: &[StateLayout] = if computed > 0 { &self.layouts } else { &[] };
        layouts.iter().map(move |layout| layout.bytes(computed))
    }

    fn check_tokens(&self, sequence: &Sequence<E::State>) -> Result<()> {
        let is_token = |token: &TokenId| (*token as usize) < self.info.vocabulary_size;
        if sequence.epoch < self.epochs.count()
            && sequence.computed <= sequence.position
            && sequence.tokens.iter().all(is_token)
        {
            return Ok(());
        }
        let message = "the snapshot's payload is not a sequence of this model";
        Err(Error::new(ErrorKind::Corrupt, "restore", message))
    }
}

fn wrong_size(payload: &[u8], expected: usize) -> Error {
    Error::new(ErrorKind::Corrupt, "restore", "the snapshot's payload has the wrong size")
        .with_context("bytes", payload.len())
        .with_context("expected", expected)
}
