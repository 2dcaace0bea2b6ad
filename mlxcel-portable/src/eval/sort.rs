//! `sort`: all operands in the order that a comparator gives.

use mlxcel_stablehlo::{Comparison, ElementType, TensorType};

use super::error::Result;
use super::lanes::{Class, load_f32, load_i64};
use super::node::SlotId;
use super::run::Frame;
use super::step::BlockPlan;

#[derive(Debug)]
pub(super) struct Sort {
    pub(super) operands: Vec<(SlotId, ElementType)>,
    pub(super) outs: Vec<SlotId>,
    /// The operands as `[outer, size, inner]`.
    outer: usize,
    size: usize,
    inner: usize,
    pub(super) order: Order,
}

/// How two places compare.
#[derive(Debug)]
pub(super) enum Order {
    /// By one operand, and whether the sides are exchanged.
    Key { operand: usize, comparison: Comparison, exchanged: bool },
    /// By a block, over two scalars for each operand.
    Block { arguments: Vec<SlotId>, block: BlockPlan },
}

/// The elements of a key along the sorted dimension.
enum Keys {
    F32(Vec<f32>),
    I64(Vec<i64>),
}

impl Sort {
    pub(super) fn plan(
        operands: Vec<(SlotId, ElementType)>,
        outs: Vec<SlotId>,
        ty: &TensorType,
        dimension: usize,
        order: Order,
    ) -> Self {
        Self {
            operands,
            outs,
            outer: ty.shape[..dimension].iter().product(),
            size: ty.shape[dimension],
            inner: ty.shape[dimension + 1..].iter().product(),
            order,
        }
    }

    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.operands.iter().for_each(|&(slot, _)| each(slot));
        if let Order::Block { block, .. } = &self.order {
            block.steps.iter().for_each(|planned| planned.step.reads(each));
            block.results.iter().for_each(|&(slot, _)| each(slot));
        }
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        let mut outs = self.outs.iter().map(|&out| frame.allocate(out)).collect::<Result<Vec<_>>>()?;
        for line in 0..self.outer * self.inner {
            let first = line / self.inner * self.size * self.inner + line % self.inner;
            let order = self.sorted(frame, first)?;
            for (&(slot, element), out) in self.operands.iter().zip(&mut outs) {
                let size = element.bytes_for(1);
                let (from, to) = (frame.bytes(slot), out.bytes_mut());
                for (i, &chosen) in order.iter().enumerate() {
                    let source = (first + chosen * self.inner) * size;
                    let place = (first + i * self.inner) * size;
                    to[place..place + size].copy_from_slice(&from[source..source + size]);
                }
            }
        }
        for (&slot, out) in self.outs.iter().zip(outs) {
            frame.put(slot, out);
        }
        Ok(())
    }

    /// The order of the places along the line whose first element is number `first`.
    fn sorted(&self, frame: &mut Frame<'_>, first: usize) -> Result<Vec<usize>> {
        match &self.order {
            Order::Key { operand, comparison, exchanged } => {
                let (slot, element) = self.operands[*operand];
                let (comparison, exchanged) = (*comparison, *exchanged);
                match self.keys(frame.bytes(slot), element, first) {
                    Keys::F32(keys) => {
                        merge_sort(self.size, |a, b| Ok(holds(comparison, exchanged, keys[a], keys[b])))
                    }
                    Keys::I64(keys) => {
                        merge_sort(self.size, |a, b| Ok(holds(comparison, exchanged, keys[a], keys[b])))
                    }
                }
            }
            Order::Block { arguments, block } => merge_sort(self.size, |a, b| {
                for (&(slot, element), pair) in self.operands.iter().zip(arguments.chunks(2)) {
                    let size = element.bytes_for(1);
                    for (&argument, place) in pair.iter().zip([a, b]) {
                        let mut scalar = frame.allocate(argument)?;
                        let from = (first + place * self.inner) * size;
                        scalar.bytes_mut().copy_from_slice(&frame.bytes(slot)[from..from + size]);
                        frame.put(argument, scalar);
                    }
                }
                frame.block(block)?;
                Ok(block.results.first().is_some_and(|&(slot, _)| frame.bytes(slot) != [0]))
            }),
        }
    }

    fn keys(&self, bytes: &[u8], element: ElementType, first: usize) -> Keys {
        match Class::of(element) {
            Class::F32 => {
                let mut keys = vec![0.0; self.size];
                load_f32(bytes, element, first, self.inner, &mut keys);
                Keys::F32(keys)
            }
            Class::I64 | Class::Bool => {
                let mut keys = vec![0; self.size];
                load_i64(bytes, element, first, self.inner, &mut keys);
                Keys::I64(keys)
            }
        }
    }
}

fn holds<T: PartialOrd>(comparison: Comparison, exchanged: bool, a: T, b: T) -> bool {
    let (a, b) = if exchanged { (b, a) } else { (a, b) };
    match comparison {
        Comparison::Equal => a == b,
        Comparison::NotEqual => a != b,
        Comparison::Less => a < b,
        Comparison::LessOrEqual => a <= b,
        Comparison::Greater => a > b,
        Comparison::GreaterOrEqual => a >= b,
    }
}

/// The order of `0..count` by `before`, stable. Any answers of `before` give some order: those of a
/// comparison with NaN are not consistent, which the sorts of the standard library may answer with a panic.
fn merge_sort(count: usize, mut before: impl FnMut(usize, usize) -> Result<bool>) -> Result<Vec<usize>> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut merged = Vec::with_capacity(count);
    let mut width = 1;
    while width < count {
        merged.clear();
        for run in order.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let (Some(&a), Some(&b)) = (left.first(), right.first()) {
                if before(b, a)? {
                    merged.push(b);
                    right = &right[1..];
                } else {
                    merged.push(a);
                    left = &left[1..];
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut order, &mut merged);
        width *= 2;
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_is_stable_for_any_comparator() {
        let keys = [3, 1, 2, 1, 3, 0];
        let order = merge_sort(6, |a, b| Ok(keys[a] < keys[b])).unwrap();
        assert_eq!(order, [5, 1, 3, 2, 0, 4]);
        let mut inconsistent = merge_sort(100, |_, _| Ok(true)).unwrap();
        inconsistent.sort_unstable();
        assert!(inconsistent.into_iter().eq(0..100));
        assert!(merge_sort(0, |_, _| Ok(true)).unwrap().is_empty());
    }
}
