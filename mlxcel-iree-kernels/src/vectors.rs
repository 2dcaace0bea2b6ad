//! Vectors of float32 in kernels: the exponential, transposition, and loads and stores in the cache's element
//! type.

use mlxcel_stablehlo::ElementType;

use crate::kernels::Kernel;
use crate::value::Operand;
use crate::view::View;
use crate::writer::Writer;

/// The most lanes up to `lanes` that divide `size`; `lanes` is a power of two.
pub(crate) fn dividing(size: usize, mut lanes: usize) -> usize {
    while !size.is_multiple_of(lanes) {
        lanes /= 2;
    }
    lanes
}

/// The largest number up to `most` that divides `of`.
pub(crate) fn largest_divisor(of: usize, most: usize) -> usize {
    (1..=most.min(of)).rev().find(|&divisor| of.is_multiple_of(divisor)).unwrap_or(1)
}

/// Scratch memory of this workgroup, `len` elements of float32.
pub(crate) fn scratch(w: &mut Writer, word: &str, len: usize) -> Memory {
    Memory { view: View::on_stack(w, word, &[len], "f32"), element: ElementType::F32 }
}

/// Contiguous elements in memory, which kernels see as float32.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) view: View,
    pub(crate) element: ElementType,
}

impl Memory {
    /// The next operand of a kernel, of `len` elements.
    pub(crate) fn operand(kernel: &mut Kernel, word: &str, len: usize, element: ElementType) -> Self {
        let binding = kernel.operand(word);
        Self { view: kernel.view(word, &binding, &[len], element.mlir()), element }
    }

    /// The next result of a kernel, of `len` elements, in its own buffer.
    pub(crate) fn result(kernel: &mut Kernel, word: &str, len: usize, element: ElementType) -> Self {
        let binding = kernel.result(word);
        Self { view: kernel.view(word, &binding, &[len], element.mlir()), element }
    }

    /// `lanes` elements from index `at` on, as float32.
    pub(crate) fn load(&self, w: &mut Writer, word: &str, at: &Operand, lanes: usize) -> Operand {
        let loaded = self.view.load(w, word, &[at], lanes);
        match self.element {
            ElementType::F32 => loaded,
            ElementType::BF16 => {
                // bfloat16 is the upper half of float32.
                let bits = w.bitcast(word, &loaded, loaded.ty.of("i16"));
                let bits = w.cast(word, "extui", &bits, "i32");
                let sixteen = w.constant(16, bits.ty);
                let bits = w.arith(word, "shli", &bits, &sixteen);
                w.bitcast(word, &bits, bits.ty.of("f32"))
            }
            ElementType::I8 => w.cast(word, "sitofp", &loaded, "f32"),
            _ => w.cast(word, "extf", &loaded, "f32"),
        }
    }

    /// Rounds `value`, floats, to this memory's element type and stores it from index `at` on.
    pub(crate) fn store(&self, w: &mut Writer, value: &Operand, at: &Operand) {
        if self.element == ElementType::F32 {
            return self.view.store(w, value, &[at]);
        }
        let rounded = w.cast("rounded", "truncf", value, self.view.element);
        self.view.store(w, &rounded, &[at]);
    }

    /// The element at index `at`, a float32, in all of `lanes`.
    pub(crate) fn broadcast(&self, w: &mut Writer, word: &str, at: &Operand, lanes: usize) -> Operand {
        let value = self.scalar(w, word, at);
        w.broadcast(word, &value, lanes)
    }

    /// The element at index `at`.
    pub(crate) fn scalar(&self, w: &mut Writer, word: &str, at: &Operand) -> Operand {
        self.view.element(w, word, &[at])
    }
}

/// The transpose of the square matrix `rows`: as many vectors as each has lanes.
///
/// Each stage exchanges blocks off the diagonal: of half the rows, then of a quarter, down to single
/// elements.
pub(crate) fn transpose(w: &mut Writer, mut rows: Vec<Operand>) -> Vec<Operand> {
    let lanes = rows.len();
    let mut block = lanes / 2;
    while block > 0 {
        for low in (0..lanes).filter(|row| row & block == 0) {
            let high = low + block;
            // Indices of the second operand's lanes follow those of the first.
            let upper = (0..lanes).map(|lane| if lane & block == 0 { lane } else { lanes + lane - block });
            let lower = (0..lanes).map(|lane| if lane & block == 0 { lane + block } else { lanes + lane });
            let mut shuffle = |mask: Vec<usize>| {
                let (a, b) = (&rows[low], &rows[high]);
                w.shuffle("turned", a, b, &mask)
            };
            let (upper, lower) = (shuffle(upper.collect()), shuffle(lower.collect()));
            rows[low] = upper;
            rows[high] = lower;
        }
        block /= 2;
    }
    rows
}

/// e to the power of `x` for `x` of at most zero, with a relative error below 2e-7; below -86, where it is
/// less than 4.5e-38, it is zero. So hidden keys add nothing, and sums do not depend on how many of them a
/// workgroup reads.
///
/// The method is that of `expf` of Moshier's Cephes library: `x = n ln 2 + r` with `r` of at most half of ln
/// 2, a polynomial of degree 5 in `r`, and `n` added to the exponent.
pub(crate) fn exponential(w: &mut Writer, x: &Operand) -> Operand {
    const POLYNOMIAL: [&str; 5] =
        ["1.3981999507e-3", "8.3334519073e-3", "4.1665795894e-2", "1.6666665459e-1", "5.0000001201e-1"];
    let (ty, bits) = (x.ty, x.ty.of("i32"));
    let constant = |w: &mut Writer, value: &str| w.constant(value, ty);
    let fma = |w: &mut Writer, a: &Operand, b: &Operand, c: &Operand| w.fma("power", a, b, c);
    let least = constant(w, "-86.0");
    // In this order of operands NaN stays NaN, in one instruction.
    let below = w.compare("below", "ogt", &least, x);
    let x = w.select("power", &below, &least, x);
    // x / ln 2 is added to a number so large that its last bit counts ones, which rounds it; n is in the
    // lowest bits of the sum.
    let (log2_e, large) = (constant(w, "1.44269504088896341"), constant(w, "12582912.0"));
    let sum = fma(w, &x, &log2_e, &large);
    let n = w.arith("power", "subf", &sum, &large);
    // ln 2 in two parts: n times the first, of few bits, is exact.
    let (high, low) = (constant(w, "-0.693359375"), constant(w, "2.12194440e-4"));
    let r = fma(w, &n, &high, &x);
    let r = fma(w, &n, &low, &r);
    let mut value = constant(w, "1.9875691500e-4");
    for coefficient in POLYNOMIAL {
        let coefficient = constant(w, coefficient);
        value = fma(w, &value, &r, &coefficient);
    }
    let square = w.arith("power", "mulf", &r, &r);
    let value = fma(w, &value, &square, &r);
    let one = constant(w, "1.0");
    let value = w.arith("power", "addf", &value, &one);
    let exponent = w.bitcast("power", &sum, bits);
    let place = w.constant("23", bits);
    let exponent = w.arith("power", "shli", &exponent, &place);
    let value = w.bitcast("power", &value, bits);
    let value = w.arith("power", "addi", &value, &exponent);
    let value = w.bitcast("power", &value, ty);
    let zero = constant(w, "0.0");
    w.select("power", &below, &zero, &value)
}

/// The hyperbolic tangent with a relative error below 1e-6.
///
/// The method is that of `tanhf` of Moshier's Cephes library: below 0.625 a polynomial, above it by the
/// exponential.
pub(crate) fn hyperbolic_tangent(w: &mut Writer, x: &Operand) -> Operand {
    const POLYNOMIAL: [&str; 4] =
        ["2.06390887954e-2", "-5.37397155531e-2", "1.33314422036e-1", "-3.33332819422e-1"];
    let ty = x.ty;
    let constant = |w: &mut Writer, value: &str| w.constant(value, ty);
    let magnitude = w.unary("tangent", "math.absf", x);
    let minus_two = constant(w, "-2.0");
    let power = w.arith("tangent", "mulf", &magnitude, &minus_two);
    let power = exponential(w, &power);
    let one = constant(w, "1.0");
    let fall = w.arith("tangent", "subf", &one, &power);
    let sum = w.arith("tangent", "addf", &one, &power);
    let large = w.arith("tangent", "divf", &fall, &sum);
    let large = w.set("tangent", ty, format_args!("math.copysign {large}, {x} : {ty}"));
    let square = w.arith("tangent", "mulf", x, x);
    let mut value = constant(w, "-5.70498872745e-3");
    for coefficient in POLYNOMIAL {
        let coefficient = constant(w, coefficient);
        value = w.fma("tangent", &value, &square, &coefficient);
    }
    let cube = w.arith("tangent", "mulf", &square, x);
    let small = w.fma("tangent", &value, &cube, x);
    let bound = constant(w, "0.625");
    let is_small = w.compare("is_small", "olt", &magnitude, &bound);
    w.select("tangent", &is_small, &small, &large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_divide_what_they_tile() {
        for (of, most, wanted) in [(128, 16, 16), (7, 16, 7), (17, 16, 1), (5, 6, 5), (8, 6, 4), (1, 4, 1)] {
            assert_eq!(largest_divisor(of, most), wanted);
        }
    }
}
