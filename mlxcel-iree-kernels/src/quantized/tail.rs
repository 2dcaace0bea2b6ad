//! The rows of a packed weight that fill no panel: at most fifteen, computed one by one.

use std::slice::from_ref;

use super::buffers::Views as PanelViews;
use super::codes::{self, TOGETHER};
use super::form::Arithmetic;
use super::groups::Groups;
use super::linear::Linear;
use super::product::Product;
use super::weight::Weight;
use crate::value::{Operand, Type};
use crate::view::View;
use crate::writer::Writer;

/// Views of the same buffers, for rows as stored.
pub(super) struct Views {
    /// `[chunks, rows, chunk · planes]` activations: per [`width`](Product::width) of them one plane after
    /// the other.
    pub(super) x: View,
    /// `[outputs, width]` each.
    pub(super) weight: Weight,
}

/// The outputs of these rows, in float32 for every arithmetic.
pub(super) fn rows(w: &mut Writer, linear: &Linear, panel_views: &PanelViews, views: &Views) {
    let product = &linear.product;
    let form = &product.form;
    let (outputs, packing) = (form.tail(), form.packing);
    let [zero, one, rows, chunks, steps] =
        [0, 1, linear.rows, form.chunks(), form.chunk() / TOGETHER].map(|n| w.index(n));
    let [begin, end] = [outputs.start, outputs.end].map(|n| w.index(n));
    let nothing = w.constant("0.0", Type::vector(TOGETHER, "f32"));
    let no_total = w.constant("0.0", Type::F32);
    w.for_loop("output", [&begin, &end, &one], &[], |w, output, _| {
        w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
            let total =
                w.for_loop("chunk", [&zero, &chunks, &one], from_ref(&no_total), |w, chunk, total| {
                    let first = w.scaled("first", chunk, form.chunk() / TOGETHER);
                    let sums = from_ref(&nothing);
                    let sum = w.for_loop("step", [&zero, &steps, &one], sums, |w, step, sum| {
                        let sixteen = w.added("sixteen", &first, step);
                        let at = w.scaled("at", &sixteen, packing.bits);
                        let stream = views.weight.codes().load(w, "stream", &[output, &at], packing.bits);
                        let codes = codes::of_stream(w, &stream, packing.bits);
                        let numbers = codes::numbers(w, &codes, packing);
                        let x = activations(w, product, &views.x, [chunk, row, step]);
                        vec![w.fma("sum", &numbers, &x, &sum[0])]
                    });
                    let sum = w.reduce("sum", "add", &sum[0]);
                    let group = w.divided("group", chunk, packing.group_size / form.chunk());
                    let weight = &views.weight;
                    let groups = Groups { packing, weight, lanes: None, before: output, behind: None };
                    let scale = groups.scale(w, &group, 1.0);
                    let x_scale = panel_views.meta.element(w, "of_x", &[chunk, row, &zero]);
                    let scale = w.arith("scale", "mulf", &scale, &x_scale);
                    let mut scaled = w.arith("scaled", "mulf", &sum, &scale);
                    if let Some(offset) = groups.offset(w, &group) {
                        let x_sum = panel_views.meta.element(w, "of_x", &[chunk, row, &one]);
                        let offset = w.arith("offset", "mulf", &offset, &x_sum);
                        scaled = w.arith("scaled", "addf", &scaled, &offset);
                    }
                    vec![w.arith("total", "addf", &total[0], &scaled)]
                });
            panel_views.out.store(w, &total[0], &[row, output]);
            Vec::new()
        });
        Vec::new()
    });
}

/// Sixteen activations as floats; in fixed point they are integers.
fn activations(w: &mut Writer, product: &Product, x: &View, [chunk, row, step]: [&Operand; 3]) -> Operand {
    let arithmetic = product.arithmetic;
    let planes = arithmetic.planes();
    let at = w.scaled("at", step, TOGETHER * planes);
    let stored_x = x.load(w, "x", &[chunk, row, &at], TOGETHER * planes);
    if arithmetic == Arithmetic::Float {
        return stored_x;
    }
    let width = product.width();
    let planes: Vec<Operand> = (0..planes)
        .map(|plane| {
            let places: Vec<usize> =
                (0..TOGETHER).map(|i| (i / width * planes + plane) * width + i % width).collect();
            let bytes = w.shuffle("bytes", &stored_x, &stored_x, &places);
            w.cast("cast", "extsi", &bytes, "i32")
        })
        .collect();
    let eight = w.constant(8, Type::vector(TOGETHER, "i32"));
    let (high, lower) = (&planes[0], &planes[1..]);
    let value = lower.iter().fold(high.clone(), |high, low| {
        let high = w.arith("high", "shli", &high, &eight);
        w.arith("x", "addi", &high, low)
    });
    w.cast("cast", "sitofp", &value, "f32")
}
