//! RMS norms: a kernel, since the compiler sums squares in an order that depends on the number of rows, and
//! approximates roots if there are many. Kernels that read a row as they need it compute its norm themselves.

use mlxcel_stablehlo::ElementType;
use mlxcel_stablehlo::ElementType::F32;

use super::kernels::{Description, Kernel};
use super::value::{Operand, Type};
use crate::view::View;
use crate::writer::Writer;

/// Elements of one workgroup.
const WORKGROUP: usize = 16 * 1024;

/// The most elements of one vector.
pub(super) const LANES: usize = 16;

/// Vectors whose squares are summed side by side if they divide the row.
const TOGETHER: usize = 4;

/// The elements of one vector in rows of `width`: the largest power of two that divides the row.
fn lanes(width: usize) -> usize {
    1 << width.trailing_zeros().min(LANES.ilog2())
}

/// Floats as float32.
fn widened(w: &mut Writer, value: Operand) -> Operand {
    if value.ty.element == "f32" { value } else { w.cast("wide", "extf", &value, "f32") }
}

/// Float32 rounded to `element`.
fn narrowed(w: &mut Writer, value: Operand, element: ElementType) -> Operand {
    if element == F32 { value } else { w.cast("narrow", "truncf", &value, element.mlir()) }
}

/// `rows` of `width` elements, each divided by its root mean square and multiplied by `width` factors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) element: ElementType,
    pub(super) factors: ElementType,
    pub(super) epsilon: f32,
}

/// The operands of a norm in a kernel.
pub(super) struct Views {
    x: View,
    weight: View,
}

impl Norm {
    /// Adds the norm's operands to `kernel`.
    pub(super) fn operands(&self, kernel: &mut Kernel) -> Views {
        let (x, weight) = (kernel.operand("x"), kernel.operand("weight"));
        Views {
            x: kernel.view("x", &x, &[self.rows, self.width], self.element.mlir()),
            weight: kernel.view("weight", &weight, &[self.width], self.factors.mlir()),
        }
    }

    /// The elements of one vector, and how many vectors are read side by side.
    fn vectors(&self) -> (usize, usize) {
        let lanes = lanes(self.width);
        (lanes, if self.width.is_multiple_of(TOGETHER * lanes) { TOGETHER } else { 1 })
    }

    /// The inverse of a row's root mean square, in each lane of a vector.
    pub(super) fn scale(&self, w: &mut Writer, views: &Views, row: &Operand) -> Operand {
        let (lanes, together) = self.vectors();
        let [zero, size, step] = [0, self.width, together * lanes].map(|number| w.index(number));
        let nothing = w.constant("0.0", Type::vector(lanes, "f32"));
        let carried = vec![nothing; together];
        let sums = w.for_loop("first", [&zero, &size, &step], &carried, |w, first, sums| {
            let squared = sums.iter().enumerate().map(|(i, sum)| {
                let at = w.offset("at", first, i * lanes);
                let value = views.x.load(w, "value", &[row, &at], lanes);
                let value = widened(w, value);
                w.fma("sum", &value, &value, sum)
            });
            squared.collect()
        });
        let joined =
            sums.iter().skip(1).fold(sums[0].clone(), |joined, sum| w.arith("joined", "addf", &joined, sum));
        let total = w.reduce("total", "add", &joined);
        let constant = |value: f32| format!("0x{:08X}", value.to_bits());
        let [count, epsilon, whole] =
            [self.width as f32, self.epsilon, 1.0].map(|value| w.constant(constant(value), Type::F32));
        let mean = w.arith("mean", "divf", &total, &count);
        let mean = w.arith("mean", "addf", &mean, &epsilon);
        let root = w.unary("root", "math.sqrt", &mean);
        let scale = w.arith("scale", "divf", &whole, &root);
        w.broadcast("scale", &scale, lanes)
    }

    /// The vector of a row's normalised elements that begins at `at`.
    pub(super) fn values(
        &self,
        w: &mut Writer,
        views: &Views,
        [row, at]: [&Operand; 2],
        scale: &Operand,
    ) -> Operand {
        let (lanes, _) = self.vectors();
        let value = views.x.load(w, "value", &[row, at], lanes);
        let factor = views.weight.load(w, "factor", &[at], lanes);
        let [value, factor] = [value, factor].map(|narrow| widened(w, narrow));
        let value = w.arith("scaled", "mulf", &value, scale);
        let value = narrowed(w, value, self.element);
        let value = widened(w, value);
        let value = w.arith("product", "mulf", &factor, &value);
        narrowed(w, value, self.element)
    }
}

impl Description for Norm {
    fn kernel(&self) -> Kernel {
        let Self { rows, width, element, .. } = *self;
        let of_workgroup = (WORKGROUP / width).clamp(1, rows);
        let label = format!("rms_norm_{element}_{rows}x{width}");
        let mut kernel = Kernel::new(label, [rows.div_ceil(of_workgroup), 1, 1]);
        let views = self.operands(&mut kernel);
        let out = kernel.result("out");
        let out = kernel.view("out", &out, &[rows, width], element.mlir());
        let workgroup = kernel.workgroup(0);

        let w = &mut kernel.body;
        let (lanes, together) = self.vectors();
        let [zero, one, all, size, step] =
            [0, 1, rows, width, together * lanes].map(|number| w.index(number));
        let begin = w.scaled("begin", &workgroup, of_workgroup);
        let end = w.offset("end", &begin, of_workgroup);
        let end = w.arith("end", "minui", &end, &all);
        w.for_loop("row", [&begin, &end, &one], &[], |w, row, _| {
            let scale = self.scale(w, &views, row);
            w.for_loop("first", [&zero, &size, &step], &[], |w, first, _| {
                for i in 0..together {
                    let at = w.offset("at", first, i * lanes);
                    let value = self.values(w, &views, [row, &at], &scale);
                    out.store(w, &value, &[row, &at]);
                }
                Vec::new()
            });
            Vec::new()
        });
        kernel
    }
}
