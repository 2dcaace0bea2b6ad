//! RMS norms: a kernel computes the scale of each row, since the compiler sums squares in an order that
//! depends on the number of rows, and approximates roots if there are many.

use mlxcel_graph::layers;
use mlxcel_stablehlo::{Attribute, Builder, Composite, ElementType, Result, TensorType, Value};

use super::kernels::{Description, Kernel};
use super::value::Type;
use crate::context::{Context, knows_attributes};

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

/// Replaces the sums of squares and the roots of a norm by a kernel; the compiler fuses the products with
/// their consumers.
pub(super) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, weight] = *composite.operands else { return Ok(None) };
    let Some(&Attribute::Float(epsilon)) = composite.attribute("eps") else { return Ok(None) };
    let ty = b.ty(x).clone();
    let Some((&width, outer)) = ty.shape.split_last() else { return Ok(None) };
    let rows: usize = outer.iter().product();
    let known = matches!(ty.element, ElementType::F32 | ElementType::BF16 | ElementType::F16);
    if !known || !knows_attributes(composite, &["eps"]) || rows == 0 || width == 0 {
        return Ok(None);
    }
    let flat = b.reshape(x, &[rows, width])?;
    let scales = Scales { rows, width, element: ty.element, epsilon };
    let result = vec![TensorType::new(ElementType::F32, [rows])];
    let scale = context.kernels.call(b, &scales, &[flat], result)?[0];
    let scale = b.reshape(scale, outer)?;
    Ok(Some(vec![layers::scale_norm(b, x, scale, weight)?]))
}

/// The reciprocals of the root mean squares of `rows` of `width` elements.
#[derive(Debug)]
struct Scales {
    rows: usize,
    width: usize,
    element: ElementType,
    epsilon: f32,
}

impl Description for Scales {
    fn kernel(&self) -> Kernel {
        let Self { rows, width, element, epsilon } = *self;
        let of_workgroup = (WORKGROUP / width).clamp(1, rows);
        let label = format!("rms_{element}_{rows}x{width}");
        let mut kernel = Kernel::new(label, [rows.div_ceil(of_workgroup), 1, 1]);
        let (x, out) = (kernel.operand("x"), kernel.result("out"));
        let x = kernel.view("x", &x, &[rows, width], element.mlir());
        let out = kernel.view("out", &out, &[rows], "f32");
        let workgroup = kernel.workgroup(0);

        let w = &mut kernel.body;
        let lanes = lanes(width);
        let together = if width % (TOGETHER * lanes) == 0 { TOGETHER } else { 1 };
        let [zero, one, all, size, step] =
            [0, 1, rows, width, together * lanes].map(|number| w.index(number));
        let nothing = w.constant("0.0", Type::vector(lanes, "f32"));
        let begin = w.scaled("begin", &workgroup, of_workgroup);
        let end = w.offset("end", &begin, of_workgroup);
        let end = w.arith("end", "minui", &end, &all);
        w.for_loop("row", [&begin, &end, &one], &[], |w, row, _| {
            let carried = vec![nothing; together];
            let sums = w.for_loop("first", [&zero, &size, &step], &carried, |w, first, sums| {
                let squared = sums.iter().enumerate().map(|(i, sum)| {
                    let at = w.offset("at", first, i * lanes);
                    let mut value = x.load(w, "value", &[row, &at], lanes);
                    if element != ElementType::F32 {
                        value = w.cast("value", "extf", &value, "f32");
                    }
                    w.fma("sum", &value, &value, sum)
                });
                squared.collect()
            });
            let joined = sums
                .iter()
                .skip(1)
                .fold(sums[0].clone(), |joined, sum| w.arith("joined", "addf", &joined, sum));
            let total = w.reduce("total", "add", &joined);
            let constant = |value: f32| format!("0x{:08X}", value.to_bits());
            let [count, epsilon, whole] =
                [width as f32, epsilon, 1.0].map(|value| w.constant(constant(value), Type::F32));
            let mean = w.arith("mean", "divf", &total, &count);
            let mean = w.arith("mean", "addf", &mean, &epsilon);
            let root = w.unary("root", "math.sqrt", &mean);
            let scale = w.arith("scale", "divf", &whole, &root);
            out.store(w, &scale, &[row]);
            Vec::new()
        });
        kernel
    }
}
