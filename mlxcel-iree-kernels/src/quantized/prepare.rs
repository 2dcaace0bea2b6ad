//! Prepares activations for products with packed values.
//!
//! `scale · q + offset` of a weight times an activation is computed as `scale · Σ q·x + offset · Σ x`, chunk by chunk. So each
//! chunk of activations needs its sum and, in fixed point, a scale of its own: the largest magnitude of the chunk becomes the
//! largest integer. The sum is that of the fixed-point values, so that both terms use the same activations.

use super::form::Arithmetic;
use super::product::Product;
use crate::kernels::Kernel;
use crate::writer::Writer;

/// Activations of one workgroup.
const WORKGROUP: usize = 16 * 1024;

/// Activations of one vector; groups and chunks are multiples of it.
pub(super) const LANES: usize = 16;

/// Magnitudes below this are zero in fixed point: their reciprocal could overflow.
const SMALLEST: &str = "1.0e-30";

/// The kernel that prepares `[rows, inputs]` f32 for products with weights of a form.
///
/// Results: `[chunks, rows, chunk / width, planes, width]` activations, with `width` multiplied by a lane at a time, and
/// `[chunks, rows, 2]` f32: scale and sum of each chunk, or instead of the sum the bits of the integer that sums of products
/// [begin with](Product::subtracted). Rows of a chunk are adjacent since a kernel reads some of many rows; with a large stride
/// they would evict each other from the cache.
pub(super) fn kernel(product: &Product, rows: usize) -> Kernel {
    let Product { form, arithmetic, .. } = product;
    let (inputs, arithmetic, width) = (form.inputs, *arithmetic, product.width());
    let (chunks, chunk) = (form.chunks(), form.chunk());
    let element = arithmetic.activation();
    let together = (WORKGROUP / inputs.max(1)).clamp(1, rows);
    let label = format!("activations_{}_{rows}x{inputs}by{chunk}", arithmetic.name());
    let mut kernel = Kernel::new(label, [rows.div_ceil(together), 1, 1]);
    let (x, ready, meta) = (kernel.operand("x"), kernel.result("ready"), kernel.result("meta"));
    let x_type = format!("memref<{rows}x{inputs}xf32>");
    let x = kernel.view("x", &x, 0, &x_type);
    let planes = arithmetic.planes();
    let ready_type = format!("memref<{chunks}x{rows}x{}x{element}>", chunk * planes);
    let ready = kernel.view("ready", &ready, 0, &ready_type);
    let meta_type = format!("memref<{chunks}x{rows}x2xf32>");
    let meta = kernel.view("meta", &meta, 0, &meta_type);
    let workgroup = kernel.workgroup(0);

    let w = &mut kernel.body;
    let [zero, one, many, rows, chunks, size] = [0, 1, together, rows, chunks, chunk].map(|n| w.index(n));
    let begin = w.arith("begin", "muli", &workgroup, &many, "index");
    let end = w.arith("end", "addi", &begin, &many, "index");
    let end = w.arith("end", "minui", &end, &rows, "index");
    w.for_loop("row", [&begin, &end, &one], &[], |w, row, _| {
        w.for_loop("chunk", [&zero, &chunks, &one], &[], |w, place, _| {
            let first = w.arith("first", "muli", place, &size, "index");
            let vector = format!("vector<{LANES}xf32>");
            let vectors: Vec<String> = (0..chunk / LANES)
                .map(|i| {
                    let at = w.offset("at", &first, i * LANES);
                    w.set("x", format_args!("vector.load {x}[{row}, {at}] : {x_type}, {vector}"))
                })
                .collect();
            let (scale, sum, vectors) = match arithmetic.largest() {
                None => {
                    let sum = total(w, &vectors, "addf", "add", "f32");
                    (w.constant("1.0", "f32"), sum, vectors)
                }
                Some(largest) => fixed_point(w, (arithmetic, width), product.subtracted(), largest, &vectors),
            };
            for (i, vector) in vectors.iter().enumerate() {
                let at = w.index(i * LANES * planes);
                let ty = format!("vector<{}x{element}>", LANES * planes);
                w.line(format_args!(
                    "vector.store {vector}, {ready}[{place}, {row}, {at}] : {ready_type}, {ty}"
                ));
            }
            for (value, part) in [(scale, &zero), (sum, &one)] {
                w.line(format_args!("memref.store {value}, {meta}[{place}, {row}, {part}] : {meta_type}"));
            }
            Vec::new()
        });
        Vec::new()
    });
    kernel
}

/// A chunk of activations in fixed point: its scale, the sum of its values, and the values.
fn fixed_point(
    w: &mut Writer,
    (arithmetic, width): (Arithmetic, usize),
    subtracted: Option<i16>,
    largest: u32,
    vectors: &[String],
) -> (String, String, Vec<String>) {
    let float = format!("vector<{LANES}xf32>");
    // Without signs, floats are ordered like their bits, with NaN above all numbers.
    let wide = format!("vector<{LANES}xi32>");
    let no_sign = w.constant("dense<0x7FFFFFFF>", &wide);
    let magnitudes: Vec<String> = vectors
        .iter()
        .map(|x| {
            let bits = w.set("bits", format_args!("arith.bitcast {x} : {float} to {wide}"));
            w.arith("magnitude", "andi", &bits, &no_sign, &wide)
        })
        .collect();
    let magnitude = total(w, &magnitudes, "maxsi", "maxsi", "i32");
    let magnitude = w.set("magnitude", format_args!("arith.bitcast {magnitude} : i32 to f32"));
    let (largest, smallest, nothing) =
        (w.constant(format!("{largest}.0"), "f32"), w.constant(SMALLEST, "f32"), w.constant("0.0", "f32"));
    let scale = w.arith("scale", "divf", &magnitude, &largest, "f32");
    let inverse = w.arith("inverse", "divf", &largest, &magnitude, "f32");
    let some = w.set("some", format_args!("arith.cmpf ogt, {magnitude}, {smallest} : f32"));
    let inverse = w.set("inverse", format_args!("arith.select {some}, {inverse}, {nothing} : f32"));
    let inverse = w.set("inverse", format_args!("vector.broadcast {inverse} : f32 to {float}"));
    let integers: Vec<String> = vectors
        .iter()
        .map(|x| {
            let scaled = w.arith("scaled", "mulf", x, &inverse, &float);
            let rounded = w.set("rounded", format_args!("math.roundeven {scaled} : {float}"));
            w.set("integers", format_args!("arith.fptosi {rounded} : {float} to {wide}"))
        })
        .collect();
    let sum = total(w, &integers, "addi", "add", "i32");
    let sum = if let Some(zero) = subtracted {
        let times = w.constant(-i32::from(zero), "i32");
        let sum = w.arith("sum", "muli", &sum, &times, "i32");
        w.set("sum", format_args!("arith.bitcast {sum} : i32 to f32"))
    } else {
        let sum = w.set("sum", format_args!("arith.sitofp {sum} : i32 to f32"));
        w.arith("sum", "mulf", &sum, &scale, "f32")
    };
    let values = integers.iter().map(|integers| bytes(w, arithmetic, width, integers)).collect();
    (scale, sum, values)
}

/// The bytes of integers: the high bytes of `width` values, then the low ones.
fn bytes(w: &mut Writer, arithmetic: Arithmetic, width: usize, integers: &str) -> String {
    let (wide, narrow) = (format!("vector<{LANES}xi32>"), format!("vector<{LANES}xi8>"));
    let low = w.set("low", format_args!("arith.trunci {integers} : {wide} to {narrow}"));
    if arithmetic.planes() == 1 {
        return low;
    }
    // The low byte is signed, so the high one is rounded, not truncated.
    let (half, eight) = (w.constant("dense<128>", &wide), w.constant("dense<8>", &wide));
    let rounded = w.arith("rounded", "addi", integers, &half, &wide);
    let shifted = w.arith("shifted", "shrsi", &rounded, &eight, &wide);
    let high = w.set("high", format_args!("arith.trunci {shifted} : {wide} to {narrow}"));
    let places: Vec<usize> = (0..2 * LANES)
        .map(|place| place / (2 * width) * width + place % width + place / width % 2 * LANES)
        .collect();
    w.set("bytes", format_args!("vector.shuffle {high}, {low} {places:?} : {narrow}, {narrow}"))
}

/// Reduces all elements of `vectors`: across them by `op` of the dialect `arith`, within a vector by `within`.
fn total(w: &mut Writer, vectors: &[String], op: &str, within: &str, element: &str) -> String {
    let vector = format!("vector<{LANES}x{element}>");
    let Some((first, rest)) = vectors.split_first() else { return String::new() };
    let joined =
        rest.iter().fold(first.clone(), |joined, next| w.arith("joined", op, &joined, next, &vector));
    w.set("total", format_args!("vector.reduction <{within}>, {joined} : {vector} into {element}"))
}
