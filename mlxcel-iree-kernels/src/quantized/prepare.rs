//! Prepares activations for products with packed values.
//!
//! `scale · q + offset` of a weight times an activation is computed as `scale · Σ q·x + offset · Σ x`, chunk
//! by chunk. So each chunk of activations needs its sum and, in fixed point, a scale of its own: the largest
//! magnitude of the chunk becomes the largest integer. The sum is that of the fixed-point values, so that
//! both terms use the same activations.

use super::form::Arithmetic;
use super::product::Product;
use crate::kernels::{Description, Kernel};
use crate::rms_norm::{self, Norm};
use crate::value::{Operand, Type};
use crate::view::View;
use crate::writer::Writer;

/// Activations of one workgroup.
const WORKGROUP: usize = 16 * 1024;

/// Activations of one vector; groups and chunks are multiples of it.
pub(super) const LANES: usize = 16;

/// Magnitudes below this are zero in fixed point: their reciprocal could overflow.
const SMALLEST: &str = "1.0e-30";

/// The kernel that prepares `[rows, inputs]` f32, or their norm, for products with weights of a form.
///
/// Results: `[chunks, rows, chunk / width, planes, width]` activations, with `width` multiplied by a lane at
/// a time, and `[chunks, rows, 2]` f32: scale and sum of each chunk, or instead of the sum the bits of the
/// integer that sums of products [begin with](Product::subtracted). Rows of a chunk are adjacent since a
/// kernel reads some of many rows; with a large stride they would evict each other from the cache.
#[derive(Debug)]
pub(super) struct Activations {
    pub(super) product: Product,
    pub(super) rows: usize,
    /// The norm of rows that is prepared, with the same bits as by its own kernel.
    pub(super) norm: Option<Norm>,
}

/// What is prepared.
enum Input {
    Stored(View),
    Normalised(Norm, rms_norm::Views),
}

impl Input {
    fn new(kernel: &mut Kernel, rows: usize, inputs: usize, norm: Option<Norm>) -> Self {
        if let Some(norm) = norm {
            return Self::Normalised(norm, norm.operands(kernel));
        }
        let x = kernel.operand("x");
        Self::Stored(kernel.view("x", &x, &[rows, inputs], "f32"))
    }

    /// Reads a row's elements.
    fn reader<'a>(&'a self, w: &mut Writer, row: &'a Operand) -> Reader<'a> {
        match self {
            Self::Stored(x) => Box::new(move |w, at| x.load(w, "x", &[row, at], LANES)),
            Self::Normalised(norm, views) => {
                let scale = norm.scale(w, views, row);
                Box::new(move |w, at| norm.values(w, views, [row, at], &scale))
            }
        }
    }
}

/// Reads the vector that begins at an element.
type Reader<'a> = Box<dyn Fn(&mut Writer, &Operand) -> Operand + 'a>;

impl Description for Activations {
    fn kernel(&self) -> Kernel {
        let &Self { ref product, rows, norm } = self;
        let Product { form, arithmetic, .. } = product;
        let (inputs, arithmetic, width) = (form.inputs, *arithmetic, product.width());
        let (chunks, chunk) = (form.chunks(), form.chunk());
        let element = arithmetic.activation();
        let together = (WORKGROUP / inputs.max(1)).clamp(1, rows);
        let normed = if norm.is_some() { "norm_" } else { "" };
        let label = format!("{normed}activations_{}_{rows}x{inputs}by{chunk}", arithmetic.name());
        let mut kernel = Kernel::new(label, [rows.div_ceil(together), 1, 1]);
        let x = Input::new(&mut kernel, rows, inputs, norm);
        let (ready, meta) = (kernel.result("ready"), kernel.result("meta"));
        let planes = arithmetic.planes();
        let ready = kernel.view("ready", &ready, &[chunks, rows, chunk * planes], element);
        let meta = kernel.view("meta", &meta, &[chunks, rows, 2], "f32");
        let workgroup = kernel.workgroup(0);

        let w = &mut kernel.body;
        let [zero, one, many, rows, chunks, size] = [0, 1, together, rows, chunks, chunk].map(|n| w.index(n));
        let begin = w.arith("begin", "muli", &workgroup, &many);
        let end = w.arith("end", "addi", &begin, &many);
        let end = w.arith("end", "minui", &end, &rows);
        w.for_loop("row", [&begin, &end, &one], &[], |w, row, _| {
            let read = x.reader(w, row);
            w.for_loop("chunk", [&zero, &chunks, &one], &[], |w, place, _| {
                let first = w.arith("first", "muli", place, &size);
                let vectors: Vec<Operand> = (0..chunk / LANES)
                    .map(|i| {
                        let at = w.offset("at", &first, i * LANES);
                        read(w, &at)
                    })
                    .collect();
                let (scale, sum, vectors) = match arithmetic.largest() {
                    None => {
                        let sum = total(w, &vectors, "addf", "add");
                        (w.constant("1.0", Type::F32), sum, vectors)
                    }
                    Some(largest) => {
                        fixed_point(w, (arithmetic, width), product.subtracted(), largest, &vectors)
                    }
                };
                for (i, vector) in vectors.iter().enumerate() {
                    let at = w.index(i * LANES * planes);
                    ready.store(w, vector, &[place, row, &at]);
                }
                for (value, part) in [(scale, &zero), (sum, &one)] {
                    meta.store(w, &value, &[place, row, part]);
                }
                Vec::new()
            });
            Vec::new()
        });
        kernel
    }
}

/// A chunk of activations in fixed point: its scale, the sum of its values, and the values.
fn fixed_point(
    w: &mut Writer,
    (arithmetic, width): (Arithmetic, usize),
    subtracted: Option<i16>,
    largest: u32,
    vectors: &[Operand],
) -> (Operand, Operand, Vec<Operand>) {
    // Without signs, floats are ordered like their bits, with NaN above all numbers.
    let no_sign = w.constant("0x7FFFFFFF", Type::vector(LANES, "i32"));
    let magnitudes: Vec<Operand> = vectors
        .iter()
        .map(|x| {
            let bits = w.cast("bits", "bitcast", x, "i32");
            w.arith("magnitude", "andi", &bits, &no_sign)
        })
        .collect();
    let magnitude = total(w, &magnitudes, "maxsi", "maxsi");
    let magnitude = w.cast("magnitude", "bitcast", &magnitude, "f32");
    let largest = w.constant(format_args!("{largest}.0"), Type::F32);
    let [smallest, nothing] = [SMALLEST, "0.0"].map(|literal| w.constant(literal, Type::F32));
    let scale = w.arith("scale", "divf", &magnitude, &largest);
    let inverse = w.arith("inverse", "divf", &largest, &magnitude);
    let some = w.compare("some", "ogt", &magnitude, &smallest);
    let inverse = w.select("inverse", &some, &inverse, &nothing);
    let inverse = w.broadcast("inverse", &inverse, LANES);
    let integers: Vec<Operand> = vectors
        .iter()
        .map(|x| {
            let scaled = w.arith("scaled", "mulf", x, &inverse);
            let rounded = w.unary("rounded", "math.roundeven", &scaled);
            w.cast("integers", "fptosi", &rounded, "i32")
        })
        .collect();
    let sum = total(w, &integers, "addi", "add");
    let sum = if let Some(zero) = subtracted {
        let times = w.constant(-i32::from(zero), Type::I32);
        let sum = w.arith("sum", "muli", &sum, &times);
        w.cast("sum", "bitcast", &sum, "f32")
    } else {
        let sum = w.cast("sum", "sitofp", &sum, "f32");
        w.arith("sum", "mulf", &sum, &scale)
    };
    let values = integers.iter().map(|integers| bytes(w, arithmetic, width, integers)).collect();
    (scale, sum, values)
}

/// The bytes of integers: the high bytes of `width` values, then the low ones.
fn bytes(w: &mut Writer, arithmetic: Arithmetic, width: usize, integers: &Operand) -> Operand {
    let low = w.cast("low", "trunci", integers, "i8");
    if arithmetic.planes() == 1 {
        return low;
    }
    // The low byte is signed, so the high one is rounded, not truncated.
    let (half, eight) = (w.constant(128, integers.ty), w.constant(8, integers.ty));
    let rounded = w.arith("rounded", "addi", integers, &half);
    let shifted = w.arith("shifted", "shrsi", &rounded, &eight);
    let high = w.cast("high", "trunci", &shifted, "i8");
    let places: Vec<usize> = (0..2 * LANES)
        .map(|place| place / (2 * width) * width + place % width + place / width % 2 * LANES)
        .collect();
    w.shuffle("bytes", &high, &low, &places)
}

/// Reduces all elements of `vectors`: across them by `op` of the dialect `arith`, within a vector by
/// `within`.
fn total(w: &mut Writer, vectors: &[Operand], op: &str, within: &str) -> Operand {
    let (first, rest) = (&vectors[0], &vectors[1..]);
    let joined = rest.iter().fold(first.clone(), |joined, next| w.arith("joined", op, &joined, next));
    w.reduce("total", within, &joined)
}
