//! Joins the results of workgroups over parts of the same positions.

use super::label;
use super::pass::{divide, for_each, mul_add};
use super::shape::Shape;
use crate::kernels::{Description, Kernel};
use crate::value::{Operand, Type};
use crate::vectors::{Memory, exponential};
use mlxcel_stablehlo::ElementType;

/// The kernel that joins [`Parts`](super::attend::Results::Parts) into the composite's result: parts are
/// scaled to the largest score of all.
#[derive(Debug)]
pub(super) struct Joins<'a>(pub(super) &'a Shape);

impl Description for Joins<'_> {
    fn kernel(&self) -> Kernel {
        let &Self(shape) = self;
        let Shape { rows, groups, value_width: width, lanes, .. } = *shape;
        let (parts, shared) = (shape.parts(), shape.shared());
        let mut kernel = Kernel::new(label("attention_join", shape), [rows * groups, 1, 1]);
        let len = rows * groups * parts * shared * (width + 2);
        let partial = Memory::operand(&mut kernel, "partial", len, ElementType::F32);
        let mixed = Memory::result(&mut kernel, "mixed", shape.tokens * shape.heads * width, shape.out);
        let workgroup = kernel.workgroup(0);
        let w = &mut kernel.body;
        for_each(w, shared, 1, |w, member| {
            let (zero, one, size) = (w.index(0), w.index(1), w.index(width + 2));
            let (row, group) = divide(w, "group", &workgroup, groups);
            // The first part of this head, and the stride to the next.
            let first = mul_add(w, "first", &workgroup, parts * shared, member);
            let first = w.arith("first", "muli", &first, &size);
            let apart = shared * (width + 2);
            let count = w.index(parts);
            let hidden = w.constant("-3.0e38", Type::F32);
            let largest = w.for_loop("part", [&zero, &count, &one], &[hidden], |w, part, largest| {
                let at = mul_add(w, "at", part, apart, &first);
                let at = w.offset("at", &at, width);
                let own = partial.scalar(w, "largest", &at);
                vec![w.arith("largest", "maximumf", &largest[0], &own)]
            });
            // The weight of each part, recomputed for every vector of the result: there are few.
            let head = mul_add(w, "head", &group, shared, member);
            let to = mul_add(w, "to", &row, shape.heads, &head);
            let to = mul_add(w, "to", &to, width, &zero);
            for_each(w, width, lanes, |w, dimension| {
                let none = w.constant("0.0", Type::vector(lanes, "f32"));
                let carried = [none.clone(), none];
                let sums = w.for_loop("part", [&zero, &count, &one], &carried, |w, part, sums| {
                    let at = mul_add(w, "at", part, apart, &first);
                    let largest_at = w.offset("at", &at, width);
                    let own = partial.scalar(w, "largest", &largest_at);
                    let fall = w.arith("fall", "subf", &own, &largest[0]);
                    let fall = w.broadcast("fall", &fall, lanes);
                    let fall = exponential(w, &fall);
                    let total_at = w.offset("at", &at, width + 1);
                    let total = partial.broadcast(w, "total", &total_at, lanes);
                    let at = w.arith("at", "addi", &at, dimension);
                    let value = partial.load(w, "value", &at, lanes);
                    let mut add = |value: &Operand, sum: &Operand| w.fma("sum", value, &fall, sum);
                    vec![add(&value, &sums[0]), add(&total, &sums[1])]
                });
                let mean = w.arith("mean", "divf", &sums[0], &sums[1]);
                let to = w.arith("to", "addi", &to, dimension);
                mixed.store(w, &mean, &to);
            });
        });
        kernel
    }
}
