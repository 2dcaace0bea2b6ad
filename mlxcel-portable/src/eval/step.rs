//! The steps of a plan, and what they read and write.

use super::argmax::ArgMax;
use super::dot::Dot;
use super::error::Result;
use super::gather::Gather;
use super::kernel::Kernel;
use super::movement::{Concatenate, DynamicSlice, DynamicUpdateSlice, Pad};
use super::node::SlotId;
use super::reduce::Reduce;
use super::run::Frame;
use super::scatter::Scatter;

/// Planned steps, and the slots of their results.
#[derive(Debug, Default)]
pub(super) struct BlockPlan {
    pub(super) steps: Vec<Planned>,
    /// The results; the flag says that the slot's contents may be moved out.
    pub(super) results: Vec<(SlotId, bool)>,
}

/// A step, and the slots that nothing needs after it.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) step: Step,
    pub(super) release: Vec<SlotId>,
}

/// One operation on memory.
#[derive(Debug)]
pub(super) enum Step {
    Elementwise(Elementwise),
    Dot(Box<Dot>),
    Reduce(Box<Reduce>),
    ArgMax(Box<ArgMax>),
    DynamicSlice(Box<DynamicSlice>),
    DynamicUpdateSlice(Box<DynamicUpdateSlice>),
    Concatenate(Box<Concatenate>),
    Pad(Box<Pad>),
    Gather(Box<Gather>),
    Scatter(Box<Scatter>),
    While(Box<While>),
}

impl Step {
    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        match self {
            Self::Elementwise(step) => step.kernel.slots.iter().copied().for_each(each),
            Self::Dot(step) => step.reads(each),
            Self::Reduce(step) => step.reads(each),
            Self::ArgMax(step) => step.reads(each),
            Self::DynamicSlice(step) => step.reads(each),
            Self::DynamicUpdateSlice(step) => step.reads(each),
            Self::Concatenate(step) => step.reads(each),
            Self::Pad(step) => step.reads(each),
            Self::Gather(step) => step.reads(each),
            Self::Scatter(step) => step.reads(each),
            Self::While(step) => step.reads(each),
        }
    }

    pub(super) fn writes(&self, each: &mut dyn FnMut(SlotId)) {
        match self {
            Self::Elementwise(step) => each(step.out),
            Self::Dot(step) => each(step.out()),
            Self::Reduce(step) => each(step.out),
            Self::ArgMax(step) => step.outs.iter().copied().for_each(each),
            Self::DynamicSlice(step) => each(step.out),
            Self::DynamicUpdateSlice(step) => each(step.out),
            Self::Concatenate(step) => each(step.out),
            Self::Pad(step) => each(step.out),
            Self::Gather(step) => each(step.out),
            Self::Scatter(step) => each(step.out),
            Self::While(step) => step.carried.iter().copied().for_each(each),
        }
    }

    /// The slots that the step would rather take over than copy, with the mark of whether it may.
    pub(super) fn consumes(&mut self) -> Vec<&mut (SlotId, bool)> {
        match self {
            Self::DynamicUpdateSlice(step) => vec![&mut step.operand],
            Self::Scatter(step) => vec![&mut step.operand],
            Self::While(step) => step.initial.iter_mut().collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        match self {
            Self::Elementwise(step) => step.run(frame),
            Self::Dot(step) => step.run(frame),
            Self::Reduce(step) => step.run(frame),
            Self::ArgMax(step) => step.run(frame),
            Self::DynamicSlice(step) => step.run(frame),
            Self::DynamicUpdateSlice(step) => step.run(frame),
            Self::Concatenate(step) => step.run(frame),
            Self::Pad(step) => step.run(frame),
            Self::Gather(step) => step.run(frame),
            Self::Scatter(step) => step.run(frame),
            Self::While(step) => step.run(frame),
        }
    }
}

/// How many elements a thread computes before it asks for more.
pub(super) const CHUNK: usize = 8192;

/// Writes an expression to memory.
#[derive(Debug)]
pub(super) struct Elementwise {
    pub(super) kernel: Kernel,
    pub(super) out: SlotId,
}

impl Elementwise {
    fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.write(self.out, |frame, out| {
            let kernel = self.kernel.bind(|slot| frame.bytes(slot));
            frame.workers.for_each(
                out.chunks_mut(self.kernel.element.bytes_for(CHUNK)).enumerate(),
                || kernel.evaluator(),
                |evaluator, (i, chunk): (usize, &mut [u8])| {
                    let start = i * CHUNK;
                    evaluator.write(start, CHUNK.min(self.kernel.elements - start), chunk);
                },
            );
            Ok(())
        })
    }
}

/// Runs a block while another one says so.
#[derive(Debug)]
pub(super) struct While {
    /// What the carried values start as.
    pub(super) initial: Vec<(SlotId, bool)>,
    /// The slots of the carried values; the results afterwards.
    pub(super) carried: Vec<SlotId>,
    pub(super) condition: BlockPlan,
    pub(super) body: BlockPlan,
}

impl While {
    fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.initial.iter().for_each(|&(slot, _)| each(slot));
        for block in [&self.condition, &self.body] {
            block.steps.iter().for_each(|planned| planned.step.reads(each));
            block.results.iter().for_each(|&(slot, _)| each(slot));
        }
    }

    fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.transfer(&self.initial, &self.carried)?;
        loop {
            frame.block(&self.condition)?;
            let holds = self.condition.results.first().is_some_and(|&(slot, _)| frame.bytes(slot) != [0]);
            if !holds {
                return Ok(());
            }
            frame.block(&self.body)?;
            frame.transfer(&self.body.results, &self.carried)?;
        }
    }
}
