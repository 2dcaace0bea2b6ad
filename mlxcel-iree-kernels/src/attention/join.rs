//! Joins the results of workgroups over parts of the same positions.

use super::label;
use super::pass::{divide, for_each, mul_add};
use super::shape::Shape;
use super::vectors::{Memory, broadcast, exponential, vector};
use crate::kernels::Kernel;
use crate::view::View;
use mlxcel_stablehlo::ElementType;

/// The kernel that joins [`Parts`](super::attend::Results::Parts) into the composite's result: parts are scaled to the largest
/// score of all.
pub(super) fn kernel(shape: &Shape) -> Kernel {
    let Shape { rows, groups, value_width: width, lanes, .. } = *shape;
    let (parts, shared) = (shape.parts(), shape.shared());
    let mut kernel = Kernel::new(label("attention_join", shape), [rows * groups, 1, 1]);
    let binding = kernel.operand("partial");
    let ty = Memory::ty(rows * groups * parts * shared * (width + 2), ElementType::F32);
    let partial =
        Memory { view: View::new(kernel.view("partial", &binding, 0, &ty), ty), element: ElementType::F32 };
    let binding = kernel.result("mixed");
    let ty = Memory::ty(shape.tokens * shape.heads * width, shape.out);
    let mixed = Memory { view: View::new(kernel.view("mixed", &binding, 0, &ty), ty), element: shape.out };
    let workgroup = kernel.workgroup(0);
    let w = &mut kernel.body;
    let vector = vector(lanes, "f32");
    for_each(w, shared, 1, |w, member| {
        let (zero, one, size) = (w.index(0), w.index(1), w.index(width + 2));
        let (row, group) = divide(w, "group", &workgroup, groups);
        // The first part of this head, and the stride to the next.
        let first = mul_add(w, "first", &workgroup, parts * shared, member);
        let first = w.arith("first", "muli", &first, &size, "index");
        let apart = shared * (width + 2);
        let count = w.index(parts);
        let hidden = w.constant("-3.0e38", "f32");
        let largest =
            w.for_loop("part", [&zero, &count, &one], &[(hidden, "f32".to_owned())], |w, part, largest| {
                let at = mul_add(w, "at", part, apart, &first);
                let at = w.offset("at", &at, width);
                let own = partial.scalar(w, "largest", &at);
                vec![w.arith("largest", "maximumf", &largest[0], &own, "f32")]
            });
        // The weight of each part, recomputed for every vector of the result: there are few.
        let head = mul_add(w, "head", &group, shared, member);
        let to = mul_add(w, "to", &row, shape.heads, &head);
        let to = mul_add(w, "to", &to, width, &zero);
        for_each(w, width, lanes, |w, dimension| {
            let none = w.constant("dense<0.0>", &vector);
            let carried = [(none.clone(), vector.clone()), (none, vector.clone())];
            let sums = w.for_loop("part", [&zero, &count, &one], &carried, |w, part, sums| {
                let at = mul_add(w, "at", part, apart, &first);
                let largest_at = w.offset("at", &at, width);
                let own = partial.scalar(w, "largest", &largest_at);
                let fall = w.arith("fall", "subf", &own, &largest[0], "f32");
                let fall = broadcast(w, "fall", &fall, lanes);
                let fall = exponential(w, &fall, lanes);
                let total_at = w.offset("at", &at, width + 1);
                let total = partial.broadcast(w, "total", &total_at, lanes);
                let at = w.arith("at", "addi", &at, dimension, "index");
                let value = partial.load(w, "value", &at, lanes);
                let mut add = |value: &str, sum: &str| {
                    w.set("sum", format_args!("vector.fma {value}, {fall}, {sum} : {vector}"))
                };
                vec![add(&value, &sums[0]), add(&total, &sums[1])]
            });
            let mean = w.arith("mean", "divf", &sums[0], &sums[1], &vector);
            let to = w.arith("to", "addi", &to, dimension, "index");
            mixed.store(w, &mean, &to, lanes);
        });
    });
    kernel
}
