//! The kernel that looks rows of a packed table up.

use super::form::Form;
use super::product::View;
use super::tail::number;
use crate::kernels::Kernel;
use crate::writer::Writer;

/// Values of one workgroup.
const WORKGROUP: usize = 16 * 1024;

/// Where a row lies: the indices of its first word and of its first scale, and which bits of a word are which value.
struct Place<'a> {
    words: &'a View,
    scales: &'a View,
    biases: &'a View,
    /// The indices in front of, and behind, that of a word or group.
    around: [Vec<String>; 2],
    /// The lowest bit of each value of a word.
    bits: Vec<usize>,
}

/// The kernel for `count` ids: words, scales, biases and ids `[count]` i32 to `[count, inputs]` f32.
pub(super) fn kernel(form: &Form, count: usize) -> Kernel {
    let Form { outputs, inputs, bits, group_size, lanes, .. } = *form;
    let together = (WORKGROUP / inputs).clamp(1, count);
    let label = format!("embedding_q{bits}g{group_size}_{count}x{inputs}");
    let mut kernel = Kernel::new(label, [count.div_ceil(together), 1, 1]);
    let [words, scales, biases] = ["words", "scales", "biases"].map(|word| kernel.panel_operand(word));
    let ids = kernel.operand("ids");
    let out = kernel.result("out");
    let mut view = |word: &str, binding, shape: &[usize], element: &str| {
        let shape: String = shape.iter().map(|size| format!("{size}x")).collect();
        let ty = format!("memref<{shape}{element}>");
        View::new(kernel.view(word, binding, 0, &ty), ty)
    };
    let (panels, element) = (form.panels(), form.scale.mlir());
    let in_panels = [
        view("words", &words, &[panels, form.words(), lanes], "i32"),
        view("scales", &scales, &[panels, form.groups(), lanes], element),
        view("biases", &biases, &[panels, form.groups(), lanes], element),
    ];
    let as_stored = [
        view("word_rows", &words, &[outputs, form.words()], "i32"),
        view("scale_rows", &scales, &[outputs, form.groups()], element),
        view("bias_rows", &biases, &[outputs, form.groups()], element),
    ];
    let ids = view("ids", &ids, &[count], "i32");
    let out = view("out", &out, &[count, inputs], "f32");
    let workgroup = kernel.workgroup(0);
    let w = &mut kernel.body;
    let [one, many, count, lane_count, in_panels_end] =
        [1, together, count, lanes, form.tail().start].map(|n| w.index(n));
    let begin = w.arith("begin", "muli", &workgroup, &many, "index");
    let end = w.arith("end", "addi", &begin, &many, "index");
    let end = w.arith("end", "minui", &end, &count, "index");
    let (least, most) = (w.constant(0, "i32"), w.constant(outputs.saturating_sub(1), "i32"));
    w.for_loop("token", [&begin, &end, &one], &[], |w, token, _| {
        let id = ids.element(w, "id", &[token]);
        let id = w.arith("id", "maxsi", &id, &least, "i32");
        let id = w.arith("id", "minsi", &id, &most, "i32");
        let row = w.set("row", format_args!("arith.index_cast {id} : i32 to index"));
        if panels > 0 {
            let in_panel = w.set("in_panel", format_args!("arith.cmpi ult, {row}, {in_panels_end} : index"));
            w.if_then(&in_panel, |w| {
                let panel = w.arith("panel", "divui", &row, &lane_count, "index");
                let lane = w.arith("lane", "remui", &row, &lane_count, "index");
                let [words, scales, biases] = &in_panels;
                let bits = (0..form.values()).map(|value| form.bit(value)).collect();
                let place = Place { words, scales, biases, around: [vec![panel], vec![lane]], bits };
                copy(w, form, &place, &out, token);
            });
        }
        if !form.tail().is_empty() {
            let left = w.set("left", format_args!("arith.cmpi uge, {row}, {in_panels_end} : index"));
            w.if_then(&left, |w| {
                let [words, scales, biases] = &as_stored;
                let bits = (0..form.values()).map(|value| value * form.bits).collect();
                let place = Place { words, scales, biases, around: [vec![row.clone()], Vec::new()], bits };
                copy(w, form, &place, &out, token);
            });
        }
        Vec::new()
    });
    kernel
}

/// Unpacks the row at a place into the result of a token.
fn copy(w: &mut Writer, form: &Form, place: &Place<'_>, out: &View, token: &str) {
    let (count, element) = (form.values(), form.scale.mlir());
    let (integers, floats) = (format!("vector<{count}xi32>"), format!("vector<{count}xf32>"));
    let at = |index: &str| -> Vec<String> {
        let [before, behind] = &place.around;
        before.iter().cloned().chain([index.to_owned()]).chain(behind.iter().cloned()).collect()
    };
    let [zero, one, groups, words, values] =
        [0, 1, form.groups(), form.group_words(), count].map(|n| w.index(n));
    let shifts = w.constant(format!("dense<{:?}>", place.bits), &integers);
    let mask = w.constant(format!("dense<{}>", (1u32 << form.bits) - 1), &integers);
    w.for_loop("group", [&zero, &groups, &one], &[], |w, group, _| {
        let first = w.arith("first", "muli", group, &words, "index");
        let of_group = at(group);
        let of_group: Vec<&str> = of_group.iter().map(String::as_str).collect();
        let [scale, bias] = [place.scales, place.biases].map(|view| {
            let value = number(w, view, &of_group, element);
            w.set("of_group", format_args!("vector.broadcast {value} : f32 to {floats}"))
        });
        w.for_loop("word", [&zero, &words, &one], &[], |w, word, _| {
            let index = w.arith("index", "addi", &first, word, "index");
            let of_word = at(&index);
            let of_word: Vec<&str> = of_word.iter().map(String::as_str).collect();
            let word = place.words.element(w, "word", &of_word);
            let word = w.set("word", format_args!("vector.broadcast {word} : i32 to {integers}"));
            let shifted = w.arith("shifted", "shrui", &word, &shifts, &integers);
            let packed = w.arith("values", "andi", &shifted, &mask, &integers);
            let packed = w.set("values", format_args!("arith.sitofp {packed} : {integers} to {floats}"));
            let scaled = w.arith("scaled", "mulf", &packed, &scale, &floats);
            let unpacked = w.arith("unpacked", "addf", &scaled, &bias, &floats);
            let column = w.arith("column", "muli", &index, &values, "index");
            out.store(w, &unpacked, &[token, &column], &floats);
            Vec::new()
        });
        Vec::new()
    });
}
