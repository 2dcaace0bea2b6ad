//! The kernel for lookups in a packed table.

use mlxcel_graph::packed::operand_parts;

use super::codes::{self, TOGETHER};
use super::form::Form;
use super::groups::Groups;
use super::weight::{self, Weight};
use crate::kernels::{Binding, Description, Kernel};
use crate::value::{Operand, Type};
use crate::view::View;
use crate::writer::Writer;

/// Values of one workgroup.
const WORKGROUP: usize = 16 * 1024;

/// Where a row is: the index before one in a part, and the one after it if the row is in a panel.
struct Place<'a> {
    weight: &'a Weight,
    before: &'a Operand,
    behind: Option<&'a Operand>,
}

/// The kernel for `count` ids: from the parts of the table and ids `[count]` i32 to `[count, inputs]` f32.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) form: Form,
    pub(super) count: usize,
}

impl Description for Lookup {
    fn kernel(&self) -> Kernel {
        let &Self { ref form, count } = self;
        let Form { outputs, inputs, lanes, .. } = *form;
        let together = (WORKGROUP / inputs).clamp(1, count);
        let label = format!("embedding_{}_{count}x{inputs}", form.name());
        let mut kernel = Kernel::new(label, [count.div_ceil(together), 1, 1]);
        let parts: Vec<Binding> =
            operand_parts(&form.packing).map(|part| kernel.panel_operand(weight::name(part))).collect();
        let ids = kernel.operand("ids");
        let out = kernel.result("out");
        let in_panels = Weight::new(form, |index, part| {
            let (width, element) = form.in_panels(part);
            kernel.view(weight::name(part), &parts[index], &[form.panels(), width, lanes], element)
        });
        let as_stored = Weight::new(form, |index, part| {
            let (width, element) = form.as_stored(part);
            kernel.view(weight::name(part), &parts[index], &[outputs, width], element)
        });
        let ids = kernel.view("ids", &ids, &[count], "i32");
        let out = kernel.view("out", &out, &[count, inputs], "f32");
        let workgroup = kernel.workgroup(0);
        let w = &mut kernel.body;
        let [one, many, count, lane_count, in_panels_end] =
            [1, together, count, lanes, form.tail().start].map(|n| w.index(n));
        let begin = w.arith("begin", "muli", &workgroup, &many);
        let end = w.arith("end", "addi", &begin, &many);
        let end = w.arith("end", "minui", &end, &count);
        let (least, most) = (w.constant(0, Type::I32), w.constant(outputs.saturating_sub(1), Type::I32));
        w.for_loop("token", [&begin, &end, &one], &[], |w, token, _| {
            let id = ids.element(w, "id", &[token]);
            let id = w.arith("id", "maxsi", &id, &least);
            let id = w.arith("id", "minsi", &id, &most);
            let row = w.cast("row", "index_cast", &id, "index");
            if form.panels() > 0 {
                let in_panel = w.compare("in_panel", "ult", &row, &in_panels_end);
                w.if_then(&in_panel, |w| {
                    let panel = w.arith("panel", "divui", &row, &lane_count);
                    let lane = w.arith("lane", "remui", &row, &lane_count);
                    copy(
                        w,
                        form,
                        &Place { weight: &in_panels, before: &panel, behind: Some(&lane) },
                        &out,
                        token,
                    );
                });
            }
            if !form.tail().is_empty() {
                let left = w.compare("left", "uge", &row, &in_panels_end);
                w.if_then(&left, |w| {
                    copy(w, form, &Place { weight: &as_stored, before: &row, behind: None }, &out, token);
                });
            }
            Vec::new()
        });
        kernel
    }
}

/// Unpacks the row at a place into a token's result.
fn copy(w: &mut Writer, form: &Form, place: &Place<'_>, out: &View, token: &Operand) {
    let packing = form.packing;
    // Whole units of codes, and at least sixteen codes.
    let size = form.unit().max(TOGETHER);
    let [zero, one, pieces] = [0, 1, form.inputs / size].map(|n| w.index(n));
    let groups =
        Groups { packing, weight: place.weight, lanes: None, before: place.before, behind: place.behind };
    w.for_loop("piece", [&zero, &pieces, &one], &[], |w, piece, _| {
        let start = w.scaled("start", piece, size);
        for first in (0..size).step_by(TOGETHER) {
            let codes = sixteen_codes(w, form, place, piece, first);
            let numbers = codes::numbers(w, &codes, packing);
            let column = w.offset("column", &start, first);
            let group = w.divided("group", &column, packing.group_size);
            let scale = groups.scale(w, &group, 1.0);
            let scale = w.broadcast("scale", &scale, TOGETHER);
            let mut values = w.arith("values", "mulf", &numbers, &scale);
            if let Some(offset) = groups.offset(w, &group) {
                let offset = w.broadcast("offset", &offset, TOGETHER);
                values = w.arith("values", "addf", &values, &offset);
            }
            out.store(w, &values, &[token, &column]);
        }
        Vec::new()
    });
}

/// The codes from code `first` of piece `piece` on.
fn sixteen_codes(w: &mut Writer, form: &Form, place: &Place<'_>, piece: &Operand, first: usize) -> Operand {
    let bits = form.packing.bits;
    let size = form.unit().max(TOGETHER);
    let Some(lane) = place.behind else {
        let at = w.scaled("at", piece, size / TOGETHER * bits);
        let at = w.offset("at", &at, first / TOGETHER * bits);
        let stream = place.weight.codes().load(w, "stream", &[place.before, &at], bits);
        return codes::of_stream(w, &stream, bits);
    };
    let words = size / form.unit() * form.unit_words();
    let at = w.scaled("at", piece, words);
    let words: Vec<Operand> = (0..words)
        .map(|word| {
            let at = w.offset("at", &at, word);
            place.weight.codes().element(w, "word", &[place.before, &at, lane])
        })
        .collect();
    match form.planes() {
        Some(planes) => codes::of_words(w, &words, planes, first),
        None => {
            let stream = w.elements("stream", &words);
            codes::of_stream(w, &stream, bits)
        }
    }
}
