//! Running a plan: the memory of its slots, and one step after another.

use super::buffer::{Arena, Buffer, RunStats};
use super::error::{EvalError, Result};
use super::node::SlotId;
use super::step::BlockPlan;
use super::tensor::{Input, Tensor};
use super::workers::Workers;
use super::{Program, RunOptions, SlotKind};

/// What a slot holds at a moment of a run.
#[derive(Debug, Default)]
enum Stored<'a> {
    #[default]
    Nothing,
    Borrowed(&'a [u8]),
    /// The flag says that the caller brought the buffer.
    Owned(Buffer, bool),
}

/// The memory of a run.
pub(super) struct Frame<'a> {
    program: &'a Program,
    slots: Vec<Stored<'a>>,
    pub(super) arena: Arena<'a>,
    pub(super) workers: &'a Workers,
    stats: &'a RunStats,
    cancel: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Frame<'a> {
    /// The bytes of a slot that an earlier step has written.
    pub(super) fn bytes(&self, slot: SlotId) -> &[u8] {
        match &self.slots[slot] {
            Stored::Nothing => &[],
            Stored::Borrowed(bytes) => bytes,
            Stored::Owned(buffer, _) => buffer.bytes(),
        }
    }

    /// A buffer for the slot, of unspecified contents.
    pub(super) fn allocate(&mut self, slot: SlotId) -> Result<Buffer> {
        self.arena.take(self.program.slots[slot].bytes)
    }

    pub(super) fn put(&mut self, slot: SlotId, buffer: Buffer) {
        self.store(slot, Stored::Owned(buffer, false));
    }

    /// Puts a buffer into the slot, all of whose bytes `write` writes; it is not called where there are none.
    pub(super) fn write(
        &mut self,
        slot: SlotId,
        write: impl FnOnce(&Self, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = self.allocate(slot)?;
        if !buffer.bytes().is_empty() {
            write(self, buffer.bytes_mut())?;
        }
        self.put(slot, buffer);
        Ok(())
    }

    fn store(&mut self, slot: SlotId, stored: Stored<'a>) {
        let old = std::mem::replace(&mut self.slots[slot], stored);
        self.recycle(old);
    }

    fn recycle(&mut self, stored: Stored<'a>) {
        if let Stored::Owned(buffer, foreign) = stored {
            self.arena.give(buffer, foreign);
        }
    }

    /// Moves what `from` holds to the slot `to` and answers a function's exclusive access to it: in place
    /// where `last_use` allows it and the buffer is owned, in a copy otherwise.
    pub(super) fn update(
        &mut self,
        (from, last_use): (SlotId, bool),
        to: SlotId,
        update: impl FnOnce(&Self, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let owned = last_use && matches!(self.slots[from], Stored::Owned(..));
        let (mut buffer, foreign) = match std::mem::take(&mut self.slots[from]) {
            Stored::Owned(buffer, foreign) if owned => (buffer, foreign),
            stored => {
                self.slots[from] = stored;
                let mut copy = self.allocate(to)?;
                copy.bytes_mut().copy_from_slice(self.bytes(from));
                (copy, false)
            }
        };
        update(self, buffer.bytes_mut())?;
        self.store(to, Stored::Owned(buffer, foreign));
        Ok(())
    }

    /// Moves what the slots hold to other slots, at once; those that are needed again are copied.
    pub(super) fn transfer(&mut self, from: &[(SlotId, bool)], to: &[SlotId]) -> Result<()> {
        let moved: Vec<Stored<'a>> = from
            .iter()
            .map(|&(slot, take)| {
                Ok(match (&self.slots[slot], take) {
                    (Stored::Borrowed(bytes), _) => Stored::Borrowed(bytes),
                    (_, true) => std::mem::take(&mut self.slots[slot]),
                    (_, false) => Stored::Owned(self.copy_of(slot)?, false),
                })
            })
            .collect::<Result<_>>()?;
        for (&slot, stored) in to.iter().zip(moved) {
            self.store(slot, stored);
        }
        Ok(())
    }

    /// Runs the steps of a block; its results are in their slots afterwards.
    pub(super) fn block(&mut self, block: &BlockPlan) -> Result<()> {
        for planned in &block.steps {
            if self.cancel.is_some_and(|cancel| cancel()) {
                return Err(EvalError::Cancelled);
            }
            planned.step.run(self)?;
            self.stats.add_step();
            for &slot in &planned.release {
                self.store(slot, Stored::Nothing);
            }
        }
        Ok(())
    }

    /// The contents of a slot as a tensor of its own.
    fn result(&mut self, (slot, take): (SlotId, bool)) -> Result<Buffer> {
        match std::mem::take(&mut self.slots[slot]) {
            Stored::Owned(buffer, _) if take => Ok(buffer),
            stored => {
                self.slots[slot] = stored;
                self.copy_of(slot)
            }
        }
    }

    fn copy_of(&mut self, slot: SlotId) -> Result<Buffer> {
        let mut copy = self.arena.take(self.bytes(slot).len())?;
        copy.bytes_mut().copy_from_slice(self.bytes(slot));
        Ok(copy)
    }
}

impl Program {
    fn check(&self, inputs: &[Input<'_>]) -> Result<()> {
        if inputs.len() != self.arguments.len() {
            return Err(EvalError::InputCount { expected: self.arguments.len(), actual: inputs.len() });
        }
        for (index, (input, (name, ty))) in inputs.iter().zip(&self.arguments).enumerate() {
            if input.ty() != ty {
                return Err(EvalError::InputType {
                    index,
                    argument: name.clone(),
                    expected: ty.clone(),
                    actual: input.ty().clone(),
                });
            }
            if let Input::Borrowed { bytes, .. } = input
                && bytes.len() != ty.bytes()
            {
                return Err(EvalError::InputLength {
                    index,
                    argument: name.clone(),
                    expected: ty.bytes(),
                    actual: bytes.len(),
                });
            }
        }
        Ok(())
    }

    /// Runs the program; see [`run`](Self::run).
    ///
    /// # Errors
    /// The errors of [`run`](Self::run), and [`EvalError::Cancelled`].
    pub fn run_with(&self, inputs: Vec<Input<'_>>, options: &RunOptions<'_>) -> Result<Vec<Tensor>> {
        self.check(&inputs)?;
        let own_stats = RunStats::default();
        let stats = options.stats.unwrap_or(&own_stats);
        let caller = Workers::caller_only();
        let mut frame = Frame {
            program: self,
            slots: Vec::with_capacity(self.slots.len()),
            arena: Arena::new(stats),
            workers: options.workers.unwrap_or(&caller),
            stats,
            cancel: options.cancel,
        };
        let mut inputs = inputs.into_iter();
        // The slots of the arguments come first, in order.
        for slot in &self.slots {
            frame.slots.push(match &slot.kind {
                SlotKind::Argument => match inputs.next() {
                    Some(Input::Borrowed { bytes, .. }) => Stored::Borrowed(bytes),
                    Some(Input::Owned(tensor)) => Stored::Owned(tensor.buffer, true),
                    None => Stored::Nothing,
                },
                SlotKind::Constant(literal) => Stored::Borrowed(literal.bytes()),
                SlotKind::Temporary => Stored::Nothing,
            });
        }
        frame.block(&self.body)?;
        let results = self.body.results.iter().zip(&self.results);
        results.map(|(&result, ty)| Ok(Tensor::from_buffer(ty.clone(), frame.result(result)?))).collect()
    }
}
