//! Operations that move boxes of elements: slices and updates at run-time places, concatenation, padding.

use super::error::Result;
use super::evaluator::Evaluator;
use super::kernel::{Bound, Kernel};
use super::node::SlotId;
use super::run::Frame;
use super::step::CHUNK;
use super::view::{Linear, View, dense_strides};

/// A box of `sizes` in a dense tensor of `shape`, as stretches of neighbouring elements.
#[derive(Debug)]
pub(super) struct Stretches {
    /// The elements of each.
    pub(super) length: usize,
    /// Where each starts, counted from the box's first element.
    pub(super) starts: Linear,
    pub(super) count: usize,
}

impl Stretches {
    pub(super) fn new(shape: &[usize], sizes: &[usize]) -> Self {
        let strides = dense_strides(shape);
        // Dimensions that are taken whole continue one another, and the dimension before them.
        let whole = (0..shape.len()).rev().take_while(|&i| sizes[i] == shape[i]).count();
        let outer = shape.len().saturating_sub(whole + 1);
        let starts = View { shape: sizes[..outer].to_vec(), strides: strides[..outer].to_vec(), offset: 0 };
        Self { length: sizes[outer..].iter().product(), count: starts.elements(), starts: starts.linear() }
    }
}

/// Run-time indices, one scalar a dimension, clamped so that a box of `sizes` fits into `shape`.
#[derive(Debug)]
pub(super) struct Starts {
    pub(super) kernels: Vec<Kernel>,
    /// The largest start of each dimension, and its stride in elements.
    limits: Vec<(usize, usize)>,
}

impl Starts {
    pub(super) fn new(kernels: Vec<Kernel>, shape: &[usize], sizes: &[usize]) -> Self {
        let limits = shape.iter().zip(sizes).map(|(size, part)| size - part);
        Self { kernels, limits: limits.zip(dense_strides(shape)).collect() }
    }

    fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.kernels.iter().flat_map(|kernel| &kernel.slots).for_each(|&slot| each(slot));
    }

    /// The number of the first element of the box.
    fn origin(&self, frame: &Frame<'_>) -> usize {
        let starts = self.kernels.iter().map(|kernel| kernel.bind(|slot| frame.bytes(slot)).scalar_i64());
        starts.zip(&self.limits).map(|(start, &(limit, stride))| clamp_start(start, limit) * stride).sum()
    }
}

/// A run-time index moved into `0..=limit`.
pub(super) fn clamp_start(start: i64, limit: usize) -> usize {
    usize::try_from(start.max(0)).unwrap_or(usize::MAX).min(limit)
}

#[derive(Debug)]
pub(super) struct DynamicSlice {
    pub(super) operand: Kernel,
    pub(super) starts: Starts,
    pub(super) stretches: Stretches,
    pub(super) out: SlotId,
}

impl DynamicSlice {
    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.operand.slots.iter().copied().for_each(&mut *each);
        self.starts.reads(each);
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.write(self.out, |frame, out| {
            let origin = self.starts.origin(frame);
            let operand = self.operand.bind(|slot| frame.bytes(slot));
            let Stretches { length, starts, .. } = &self.stretches;
            let bytes = self.operand.element.bytes_for(*length);
            // Short stretches are handed out in groups.
            let group = (CHUNK / length).max(1);
            frame.workers.for_each(
                out.chunks_mut(group * bytes).enumerate(),
                || operand.evaluator(),
                |evaluator, (i, places): (usize, &mut [u8])| {
                    for (j, place) in places.chunks_mut(bytes).enumerate() {
                        evaluator.write(origin + starts.at(i * group + j), *length, place);
                    }
                },
            );
            Ok(())
        })
    }
}

#[derive(Debug)]
pub(super) struct DynamicUpdateSlice {
    pub(super) operand: (SlotId, bool),
    pub(super) update: Kernel,
    pub(super) starts: Starts,
    pub(super) stretches: Stretches,
    pub(super) out: SlotId,
}

impl DynamicUpdateSlice {
    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        each(self.operand.0);
        self.update.slots.iter().copied().for_each(&mut *each);
        self.starts.reads(each);
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.update(self.operand, self.out, |frame, bytes| {
            if self.update.elements == 0 {
                return Ok(());
            }
            let origin = self.starts.origin(frame);
            let update = self.update.bind(|slot| frame.bytes(slot));
            let mut update = update.evaluator();
            let Stretches { length, starts, count } = &self.stretches;
            let size = self.update.element.bytes_for(1);
            for i in 0..*count {
                let place = (origin + starts.at(i)) * size;
                update.write(i * length, *length, &mut bytes[place..place + length * size]);
            }
            Ok(())
        })
    }
}

#[derive(Debug)]
pub(super) struct Concatenate {
    /// Each operand, and how many of its elements follow one another in the result.
    pub(super) operands: Vec<(Kernel, usize)>,
    pub(super) out: SlotId,
}

impl Concatenate {
    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.operands.iter().flat_map(|(kernel, _)| &kernel.slots).for_each(|&slot| each(slot));
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.write(self.out, |frame, out| {
            let Some((first, _)) = self.operands.first() else { return Ok(()) };
            let length: usize = self.operands.iter().map(|&(_, run)| run).sum();
            let size = first.element.bytes_for(1);
            let operands: Vec<(Bound<'_>, usize)> = self
                .operands
                .iter()
                .filter(|&&(_, run)| run > 0)
                .map(|(kernel, run)| (kernel.bind(|slot| frame.bytes(slot)), *run))
                .collect();
            let group = (CHUNK / length).max(1);
            frame.workers.for_each(
                out.chunks_mut(group * length * size).enumerate(),
                || operands.iter().map(|(operand, run)| (operand.evaluator(), *run)).collect(),
                |operands: &mut Vec<(Evaluator<'_>, usize)>, (i, lines): (usize, &mut [u8])| {
                    for (j, line) in lines.chunks_mut(length * size).enumerate() {
                        let mut rest = line;
                        for (operand, run) in &mut *operands {
                            let (place, after) = rest.split_at_mut(*run * size);
                            operand.write((i * group + j) * *run, *run, place);
                            rest = after;
                        }
                    }
                },
            );
            Ok(())
        })
    }
}

#[derive(Debug)]
pub(super) struct Pad {
    pub(super) operand: Kernel,
    pub(super) value: Kernel,
    /// The operand's sizes.
    pub(super) shape: Vec<usize>,
    pub(super) result: Vec<usize>,
    pub(super) low: Vec<i64>,
    pub(super) interior: Vec<usize>,
    pub(super) out: SlotId,
}

impl Pad {
    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.operand.slots.iter().copied().for_each(&mut *each);
        self.value.slots.iter().copied().for_each(each);
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.write(self.out, |frame, out| {
            let operand = self.operand.bind(|slot| frame.bytes(slot));
            let value = self.value.bind(|slot| frame.bytes(slot));
            self.fill(out, &mut operand.evaluator(), &mut value.evaluator());
            Ok(())
        })
    }

    fn fill(&self, out: &mut [u8], operand: &mut Evaluator<'_>, value: &mut Evaluator<'_>) {
        let size = self.operand.element.bytes_for(1);
        let mut filler = [0; 8];
        value.write(0, 1, &mut filler[..size]);
        for place in out.chunks_exact_mut(size) {
            place.copy_from_slice(&filler[..size]);
        }
        let Some((&columns, outer)) = self.shape.split_last() else {
            operand.write(0, 1, out);
            return;
        };
        let last = outer.len();
        let strides = dense_strides(&self.result);
        for row in 0..outer.iter().product() {
            // The row's place in the result, unless it was cut off.
            let mut index = row;
            let mut start = Some(0);
            for i in (0..last).rev() {
                let at = self.place(i, index % outer[i]);
                index /= outer[i];
                start = start.zip(at).map(|(start, at)| start + at * strides[i]);
            }
            let Some(start) = start else { continue };
            if self.interior[last] == 0 {
                // The columns that are not cut off on either side.
                let low = self.low[last];
                let first = usize::try_from(-low).unwrap_or(0).min(columns);
                let end = usize::try_from(self.result[last] as i64 - low).unwrap_or(0).min(columns);
                if let (Some(at), true) = (self.place(last, first), first < end) {
                    let place = &mut out[(start + at) * size..(start + at + end - first) * size];
                    operand.write(row * columns + first, end - first, place);
                }
            } else {
                for column in 0..columns {
                    if let Some(at) = self.place(last, column) {
                        let place = &mut out[(start + at) * size..(start + at + 1) * size];
                        operand.write(row * columns + column, 1, place);
                    }
                }
            }
        }
    }

    /// Where index `at` of dimension `i` comes to lie, if it does.
    fn place(&self, i: usize, at: usize) -> Option<usize> {
        let place = i128::from(self.low[i]) + at as i128 * (self.interior[i] as i128 + 1);
        usize::try_from(place).ok().filter(|&place| place < self.result[i])
    }
}
