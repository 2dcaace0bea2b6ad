//! Vectors of float32 in kernels: the exponential, transposition, and loads and stores in the cache's element type.

use mlxcel_stablehlo::ElementType;

use crate::view::View;
use crate::writer::Writer;

/// The MLIR type of `lanes` elements.
pub(super) fn vector(lanes: usize, element: &str) -> String {
    format!("vector<{lanes}x{element}>")
}

/// The most lanes up to `lanes` that divide `size`; `lanes` is a power of two.
pub(super) fn dividing(size: usize, mut lanes: usize) -> usize {
    while !size.is_multiple_of(lanes) {
        lanes /= 2;
    }
    lanes
}

/// Scratch memory of this workgroup, `len` elements of float32.
pub(super) fn scratch(w: &mut Writer, word: &str, len: usize) -> Memory {
    Memory { view: View::on_stack(w, word, len, "f32"), element: ElementType::F32 }
}

/// Contiguous elements in memory, which kernels see as float32.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) view: View,
    pub(super) element: ElementType,
}

impl Memory {
    /// The type of `len` contiguous elements.
    pub(super) fn ty(len: usize, element: ElementType) -> String {
        format!("memref<{len}x{}>", element.mlir())
    }

    /// `lanes` elements from index `at` on, as float32.
    pub(super) fn load(&self, w: &mut Writer, word: &str, at: &str, lanes: usize) -> String {
        let element = self.element.mlir();
        let (raw, wide) = (vector(lanes, element), vector(lanes, "f32"));
        let loaded = self.view.load(w, word, &[at], &raw);
        match self.element {
            ElementType::F32 => loaded,
            ElementType::BF16 => {
                // bfloat16 is the upper half of float32.
                let (half, word32) = (vector(lanes, "i16"), vector(lanes, "i32"));
                let bits = w.set(word, format_args!("vector.bitcast {loaded} : {raw} to {half}"));
                let bits = w.set(word, format_args!("arith.extui {bits} : {half} to {word32}"));
                let sixteen = w.constant("dense<16>", &word32);
                let bits = w.arith(word, "shli", &bits, &sixteen, &word32);
                w.set(word, format_args!("vector.bitcast {bits} : {word32} to {wide}"))
            }
            ElementType::I8 => w.set(word, format_args!("arith.sitofp {loaded} : {raw} to {wide}")),
            _ => w.set(word, format_args!("arith.extf {loaded} : {raw} to {wide}")),
        }
    }

    /// Rounds `value`, `lanes` of float32, to this memory's element type and stores it from index `at` on.
    pub(super) fn store(&self, w: &mut Writer, value: &str, at: &str, lanes: usize) {
        let raw = vector(lanes, self.element.mlir());
        let mut value = value.to_owned();
        if self.element != ElementType::F32 {
            value =
                w.set("rounded", format_args!("arith.truncf {value} : {} to {raw}", vector(lanes, "f32")));
        }
        self.view.store(w, &value, &[at], &raw);
    }

    /// The element at index `at`, a float32, in all of `lanes`.
    pub(super) fn broadcast(&self, w: &mut Writer, word: &str, at: &str, lanes: usize) -> String {
        let value = self.scalar(w, word, at);
        broadcast(w, word, &value, lanes)
    }

    /// The element at index `at`.
    pub(super) fn scalar(&self, w: &mut Writer, word: &str, at: &str) -> String {
        self.view.element(w, word, &[at])
    }

    /// Stores one element at index `at`.
    pub(super) fn store_scalar(&self, w: &mut Writer, value: &str, at: &str) {
        self.view.put(w, value, &[at]);
    }
}

/// A float32 in all of `lanes`.
pub(super) fn broadcast(w: &mut Writer, word: &str, value: &str, lanes: usize) -> String {
    w.set(word, format_args!("vector.broadcast {value} : f32 to {}", vector(lanes, "f32")))
}

/// The operation `maximumf` or `add` over all lanes.
pub(super) fn reduce(w: &mut Writer, word: &str, kind: &str, value: &str, lanes: usize) -> String {
    w.set(word, format_args!("vector.reduction <{kind}>, {value} : {} into f32", vector(lanes, "f32")))
}

/// The transpose of the square matrix `rows`: as many vectors as each has lanes.
///
/// Each stage exchanges blocks off the diagonal: of half the rows, then of a quarter, down to single elements.
pub(super) fn transpose(w: &mut Writer, mut rows: Vec<String>) -> Vec<String> {
    let lanes = rows.len();
    let ty = vector(lanes, "f32");
    let mut block = lanes / 2;
    while block > 0 {
        for low in (0..lanes).filter(|row| row & block == 0) {
            let high = low + block;
            // Indices of the second operand's lanes follow those of the first.
            let upper = (0..lanes).map(|lane| if lane & block == 0 { lane } else { lanes + lane - block });
            let lower = (0..lanes).map(|lane| if lane & block == 0 { lane + block } else { lanes + lane });
            let mut shuffle = |mask: Vec<usize>| {
                let (a, b) = (&rows[low], &rows[high]);
                w.set("turned", format_args!("vector.shuffle {a}, {b} {mask:?} : {ty}, {ty}"))
            };
            let (upper, lower) = (shuffle(upper.collect()), shuffle(lower.collect()));
            rows[low] = upper;
            rows[high] = lower;
        }
        block /= 2;
    }
    rows
}

/// e to the power of `x` for `x` of at most zero, with a relative error below 2e-7; below -86, where it is less than 4.5e-38, it is zero.
/// So hidden keys add nothing, and sums do not depend on how many of them a workgroup reads.
///
/// The method is that of `expf` of Moshier's Cephes library: `x = n ln 2 + r` with `r` of at most half of ln 2, a polynomial of
/// degree 5 in `r`, and `n` added to the exponent.
pub(super) fn exponential(w: &mut Writer, x: &str, lanes: usize) -> String {
    const POLYNOMIAL: [&str; 5] =
        ["1.3981999507e-3", "8.3334519073e-3", "4.1665795894e-2", "1.6666665459e-1", "5.0000001201e-1"];
    let (ty, bits) = (vector(lanes, "f32"), vector(lanes, "i32"));
    let constant = |w: &mut Writer, value: &str| w.constant(format_args!("dense<{value}>"), &ty);
    let fma = |w: &mut Writer, a: &str, b: &str, c: &str| {
        w.set("power", format_args!("vector.fma {a}, {b}, {c} : {ty}"))
    };
    let least = constant(w, "-86.0");
    // In this order of operands NaN stays NaN, in one instruction.
    let below = w.set("below", format_args!("arith.cmpf ogt, {least}, {x} : {ty}"));
    let truths = vector(lanes, "i1");
    let x = w.set("power", format_args!("arith.select {below}, {least}, {x} : {truths}, {ty}"));
    // x / ln 2 is added to a number so large that its last bit counts ones, which rounds it; n is in the lowest bits of the sum.
    let (log2_e, large) = (constant(w, "1.44269504088896341"), constant(w, "12582912.0"));
    let sum = fma(w, &x, &log2_e, &large);
    let n = w.arith("power", "subf", &sum, &large, &ty);
    // ln 2 in two parts: n times the first, of few bits, is exact.
    let (high, low) = (constant(w, "-0.693359375"), constant(w, "2.12194440e-4"));
    let r = fma(w, &n, &high, &x);
    let r = fma(w, &n, &low, &r);
    let mut value = constant(w, "1.9875691500e-4");
    for coefficient in POLYNOMIAL {
        let coefficient = constant(w, coefficient);
        value = fma(w, &value, &r, &coefficient);
    }
    let square = w.arith("power", "mulf", &r, &r, &ty);
    let value = fma(w, &value, &square, &r);
    let one = constant(w, "1.0");
    let value = w.arith("power", "addf", &value, &one, &ty);
    let exponent = w.set("power", format_args!("vector.bitcast {sum} : {ty} to {bits}"));
    let place = w.constant("dense<23>", &bits);
    let exponent = w.arith("power", "shli", &exponent, &place, &bits);
    let value = w.set("power", format_args!("vector.bitcast {value} : {ty} to {bits}"));
    let value = w.arith("power", "addi", &value, &exponent, &bits);
    let value = w.set("power", format_args!("vector.bitcast {value} : {bits} to {ty}"));
    let zero = constant(w, "0.0");
    w.set("power", format_args!("arith.select {below}, {zero}, {value} : {truths}, {ty}"))
}

/// The hyperbolic tangent with a relative error below 1e-6.
///
/// The method is that of `tanhf` of Moshier's Cephes library: below 0.625 a polynomial, above it by the exponential.
pub(super) fn hyperbolic_tangent(w: &mut Writer, x: &str, lanes: usize) -> String {
    const POLYNOMIAL: [&str; 4] =
        ["2.06390887954e-2", "-5.37397155531e-2", "1.33314422036e-1", "-3.33332819422e-1"];
    let (ty, truths) = (vector(lanes, "f32"), vector(lanes, "i1"));
    let constant = |w: &mut Writer, value: &str| w.constant(format_args!("dense<{value}>"), &ty);
    let magnitude = w.set("tangent", format_args!("math.absf {x} : {ty}"));
    let minus_two = constant(w, "-2.0");
    let power = w.arith("tangent", "mulf", &magnitude, &minus_two, &ty);
    let power = exponential(w, &power, lanes);
    let one = constant(w, "1.0");
    let fall = w.arith("tangent", "subf", &one, &power, &ty);
    let sum = w.arith("tangent", "addf", &one, &power, &ty);
    let large = w.arith("tangent", "divf", &fall, &sum, &ty);
    let large = w.set("tangent", format_args!("math.copysign {large}, {x} : {ty}"));
    let square = w.arith("tangent", "mulf", x, x, &ty);
    let mut value = constant(w, "-5.70498872745e-3");
    for coefficient in POLYNOMIAL {
        let coefficient = constant(w, coefficient);
        value = w.set("tangent", format_args!("vector.fma {value}, {square}, {coefficient} : {ty}"));
    }
    let cube = w.arith("tangent", "mulf", &square, x, &ty);
    let small = w.set("tangent", format_args!("vector.fma {value}, {cube}, {x} : {ty}"));
    let bound = constant(w, "0.625");
    let is_small = w.set("is_small", format_args!("arith.cmpf olt, {magnitude}, {bound} : {ty}"));
    w.set("tangent", format_args!("arith.select {is_small}, {small}, {large} : {truths}, {ty}"))
}
