//! The rows of a packed weight that fill no panel: at most fifteen, value by value.

use super::buffers::Views as PanelViews;
use super::form::Arithmetic;
use super::linear::Linear;
use super::product::View;
use crate::writer::Writer;

/// Views of the same buffers, as rows are stored.
pub(super) struct Views {
    /// `[groups, rows, group_size / width, planes, width]` activations.
    pub(super) x: View,
    /// `[outputs, words]` i32.
    pub(super) words: View,
    /// `[outputs, groups]`.
    pub(super) scales: View,
    /// `[outputs, groups]`.
    pub(super) biases: View,
}

/// A scale or bias in float32.
pub(super) fn number(w: &mut Writer, view: &View, at: &[&str], stored: &str) -> String {
    let value = view.element(w, "stored", at);
    if stored == "f32" {
        return value;
    }
    w.set("of_group", format_args!("arith.extf {value} : {stored} to f32"))
}

/// The outputs of these rows.
pub(super) fn rows(w: &mut Writer, linear: &Linear, panel_views: &PanelViews, views: &Views) {
    let product = &linear.product;
    let (form, arithmetic) = (&product.form, product.arithmetic);
    let sum_type = arithmetic.lane();
    let element = form.scale.mlir();
    let outputs = form.tail();
    let units_in_word = form.values() / arithmetic.width();
    let [zero, one, rows, groups, words] =
        [0, 1, linear.rows, form.groups(), form.group_words()].map(|n| w.index(n));
    let [units_in_word, begin, end] = [units_in_word, outputs.start, outputs.end].map(|n| w.index(n));
    let nothing = w.constant(if arithmetic == Arithmetic::Float { "0.0" } else { "0" }, sum_type);
    let no_total = (w.constant("0.0", "f32"), "f32".to_owned());
    let mask = w.constant((1u32 << form.bits) - 1, "i32");
    w.for_loop("output", [&begin, &end, &one], &[], |w, output, _| {
        w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
            let total = w.for_loop("group", [&zero, &groups, &one], &[no_total], |w, group, total| {
                let first = w.arith("first", "muli", group, &words, "index");
                let sums = [(nothing, sum_type.to_owned())];
                let sum = w.for_loop("word", [&zero, &words, &one], &sums, |w, place, sum| {
                    let at = w.arith("at", "addi", &first, place, "index");
                    let word = views.words.element(w, "word", &[output, &at]);
                    let unit = w.arith("unit", "muli", place, &units_in_word, "index");
                    let mut sum = sum[0].clone();
                    for value in 0..form.values() {
                        let shift = w.constant(value * form.bits, "i32");
                        let q = w.arith("shifted", "shrui", &word, &shift, "i32");
                        let q = w.arith("value", "andi", &q, &mask, "i32");
                        let unit = w.offset("unit", &unit, value / arithmetic.width());
                        let part = w.index(value % arithmetic.width());
                        let (x, q, multiply, add) = if arithmetic == Arithmetic::Float {
                            let x = views.x.element(w, "x", &[group, row, &unit, &zero, &part]);
                            (x, w.set("value", format_args!("arith.sitofp {q} : i32 to f32")), "mulf", "addf")
                        } else {
                            (integer(w, arithmetic, &views.x, [group, row, &unit, &part]), q, "muli", "addi")
                        };
                        let term = w.arith("term", multiply, &x, &q, sum_type);
                        sum = w.arith("sum", add, &sum, &term, sum_type);
                    }
                    vec![sum]
                });
                let scale = number(w, &views.scales, &[output, group], element);
                let bias = number(w, &views.biases, &[output, group], element);
                let x_scale = panel_views.meta.element(w, "of_x", &[group, row, &zero]);
                let x_sum = panel_views.meta.element(w, "of_x", &[group, row, &one]);
                let sum = if arithmetic == Arithmetic::Float {
                    sum[0].clone()
                } else {
                    w.set("sum", format_args!("arith.sitofp {} : i32 to f32", sum[0]))
                };
                let scale = w.arith("scale", "mulf", &scale, &x_scale, "f32");
                let scaled = w.arith("scaled", "mulf", &sum, &scale, "f32");
                let shifted = w.arith("shifted", "mulf", &bias, &x_sum, "f32");
                let both = w.arith("both", "addf", &scaled, &shifted, "f32");
                vec![w.arith("total", "addf", &total[0], &both, "f32")]
            });
            panel_views.out.put(w, &total[0], &[row, output]);
            Vec::new()
        });
        Vec::new()
    });
}

/// An activation in fixed point.
fn integer(w: &mut Writer, arithmetic: Arithmetic, x: &View, [group, row, unit, part]: [&str; 4]) -> String {
    let planes: Vec<String> = (0..arithmetic.planes())
        .map(|plane| {
            let plane = w.index(plane);
            let byte = x.element(w, "x", &[group, row, unit, &plane, part]);
            w.set("x", format_args!("arith.extsi {byte} : i8 to i32"))
        })
        .collect();
    let [high, low] = &planes[..] else { return planes.concat() };
    let eight = w.constant(8, "i32");
    let high = w.arith("high", "shli", high, &eight, "i32");
    w.arith("x", "addi", &high, low, "i32")
}
