//! The rows of a packed weight that fill no panel: at most fifteen, computed one by one.

use super::buffers::Views as PanelViews;
use super::codes::{self, TOGETHER};
use super::extent::Extent;
use super::form::Arithmetic;
use super::groups::Groups;
use super::linear::Linear;
use super::product::Product;
use super::weight::Weight;
use crate::view::View;
use crate::writer::Writer;

/// Views of the same buffers, for rows as stored.
pub(super) struct Views {
    /// `[chunks, rows, chunk · planes]` activations: per [`width`](Product::width) of them one plane after the other.
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
    let floats = Extent::Vector(TOGETHER).ty("f32");
    let stream_type = format!("vector<{}xi16>", packing.bits);
    let nothing = w.constant("dense<0.0>", &floats);
    let no_total = (w.constant("0.0", "f32"), "f32".to_owned());
    w.for_loop("output", [&begin, &end, &one], &[], |w, output, _| {
        w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
            let total = w.for_loop("chunk", [&zero, &chunks, &one], &[no_total], |w, chunk, total| {
                let first = w.scaled("first", chunk, form.chunk() / TOGETHER);
                let sums = [(nothing, floats.clone())];
                let sum = w.for_loop("step", [&zero, &steps, &one], &sums, |w, step, sum| {
                    let sixteen = w.added("sixteen", &first, step);
                    let at = w.scaled("at", &sixteen, packing.bits);
                    let stream = views.weight.codes().load(w, "stream", &[output, &at], &stream_type);
                    let codes = codes::of_stream(w, &stream, packing.bits);
                    let numbers = codes::numbers(w, &codes, packing);
                    let x = activations(w, product, &views.x, [chunk, row, step]);
                    vec![w.set("sum", format_args!("vector.fma {numbers}, {x}, {} : {floats}", sum[0]))]
                });
                let sum =
                    w.set("sum", format_args!("vector.reduction <add>, {} : {floats} into f32", sum[0]));
                let group = w.divided("group", chunk, packing.group_size / form.chunk());
                let (weight, extent) = (&views.weight, Extent::One);
                let groups = Groups { packing, weight, extent, before: output, behind: None };
                let scale = groups.scale(w, &group, 1.0);
                let x_scale = panel_views.meta.element(w, "of_x", &[chunk, row, &zero]);
                let scale = w.arith("scale", "mulf", &scale, &x_scale, "f32");
                let mut scaled = w.arith("scaled", "mulf", &sum, &scale, "f32");
                if let Some(offset) = groups.offset(w, &group) {
                    let x_sum = panel_views.meta.element(w, "of_x", &[chunk, row, &one]);
                    let offset = w.arith("offset", "mulf", &offset, &x_sum, "f32");
                    scaled = w.arith("scaled", "addf", &scaled, &offset, "f32");
                }
                vec![w.arith("total", "addf", &total[0], &scaled, "f32")]
            });
            panel_views.out.put(w, &total[0], &[row, output]);
            Vec::new()
        });
        Vec::new()
    });
}

/// Sixteen activations as floats; in fixed point they are integers.
fn activations(w: &mut Writer, product: &Product, x: &View, [chunk, row, step]: [&str; 3]) -> String {
    let arithmetic = product.arithmetic;
    let (extent, planes) = (Extent::Vector(TOGETHER), arithmetic.planes());
    let at = w.scaled("at", step, TOGETHER * planes);
    let stored = Extent::Vector(TOGETHER * planes).ty(arithmetic.activation());
    let stored_x = x.load(w, "x", &[chunk, row, &at], &stored);
    if arithmetic == Arithmetic::Float {
        return stored_x;
    }
    let integers = extent.ty("i32");
    let width = product.width();
    let planes: Vec<String> = (0..planes)
        .map(|plane| {
            let places: Vec<usize> =
                (0..TOGETHER).map(|i| (i / width * planes + plane) * width + i % width).collect();
            let bytes = w.set(
                "bytes",
                format_args!("vector.shuffle {stored_x}, {stored_x} {places:?} : {stored}, {stored}"),
            );
            extent.cast(w, "extsi", &bytes, "i8", "i32")
        })
        .collect();
    let eight = extent.constant(w, 8, "i32");
    let value = planes.into_iter().reduce(|high, low| {
        let high = w.arith("high", "shli", &high, &eight, &integers);
        w.arith("x", "addi", &high, &low, &integers)
    });
    extent.cast(w, "sitofp", &value.unwrap_or_default(), "i32", "f32")
}
