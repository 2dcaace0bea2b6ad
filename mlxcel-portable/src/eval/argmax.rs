//! `reduce_argmax`: the largest value along a dimension and the corresponding index.

use mlxcel_stablehlo::TensorType;

use super::error::Result;
use super::kernel::Kernel;
use super::lanes::{BLOCK, Class, store_f32, store_i64};
use super::node::SlotId;
use super::run::Frame;

/// A planned arg-max.
#[derive(Debug)]
pub(super) struct ArgMax {
    values: Kernel,
    indices: Kernel,
    /// The operand as `[outer, size, inner]`.
    size: usize,
    inner: usize,
    /// The slots of the largest values and of their indices.
    pub(super) outs: [SlotId; 2],
}

impl ArgMax {
    pub(super) fn plan(
        values: Kernel,
        indices: Kernel,
        ty: &TensorType,
        dimension: usize,
        outs: [SlotId; 2],
    ) -> Self {
        let inner = ty.shape[dimension + 1..].iter().product();
        Self { values, indices, size: ty.shape[dimension], inner, outs }
    }

    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.values.slots.iter().copied().for_each(&mut *each);
        self.indices.slots.iter().copied().for_each(each);
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        let [first, second] = self.outs;
        let (mut largest, mut chosen) = (frame.allocate(first)?, frame.allocate(second)?);
        let (element, index) = (self.values.element, self.indices.element);
        let (inner, size) = (self.inner, self.size);
        {
            let values = self.values.bind(|slot| frame.bytes(slot));
            let indices = self.indices.bind(|slot| frame.bytes(slot));
            let places = largest
                .bytes_mut()
                .chunks_mut(element.bytes_for(inner).max(1))
                .zip(chosen.bytes_mut().chunks_mut(index.bytes_for(inner).max(1)))
                .enumerate();
            frame.workers.for_each(
                places,
                || (values.evaluator(), indices.evaluator()),
                |(values, indices), (outer, (largest, chosen)): (usize, (&mut [u8], &mut [u8]))| {
                    let start = outer * size * inner;
                    let mut best_index = vec![0; inner];
                    let mut best_float = vec![f32::NAN; inner];
                    let mut best_integer = vec![0; inner];
                    for at in (0..size * inner).step_by(BLOCK) {
                        let count = BLOCK.min(size * inner - at);
                        let candidates = indices.i64s(start + at, count);
                        match Class::of(element) {
                            Class::F32 => choose(
                                (values.f32s(start + at, count), candidates),
                                (&mut best_float, &mut best_index),
                                at,
                                |a, b| a > b || (b.is_nan() && !a.is_nan()),
                                |a, b| a == b || (a.is_nan() && b.is_nan()),
                            ),
                            _ => choose(
                                (values.i64s(start + at, count), candidates),
                                (&mut best_integer, &mut best_index),
                                at,
                                |a, b| a > b,
                                |a, b| a == b,
                            ),
                        }
                    }
                    match Class::of(element) {
                        Class::F32 => store_f32(&best_float, element, largest),
                        _ => store_i64(&best_integer, element, largest),
                    }
                    store_i64(&best_index, index, chosen);
                },
            );
        }
        frame.put(first, largest);
        frame.put(second, chosen);
        Ok(())
    }
}

/// Lets a block of candidates, the first of them number `at` of its slab, compete with the best so far.
fn choose<T: Copy>(
    (values, indices): (&[T], &[i64]),
    (best, best_index): (&mut [T], &mut [i64]),
    at: usize,
    above: impl Fn(T, T) -> bool,
    equal: impl Fn(T, T) -> bool,
) {
    let inner = best.len();
    for (i, (&value, &index)) in values.iter().zip(indices).enumerate() {
        let column = (at + i) % inner;
        let first = at + i < inner;
        let old = best[column];
        if first || above(value, old) || (equal(value, old) && index < best_index[column]) {
            best[column] = value;
            best_index[column] = index;
        }
    }
}
