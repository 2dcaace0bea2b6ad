//! Linear layers.

mod few_rows;

use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, Value};

use super::Context;
use few_rows::FewRows;

/// Replaces a linear layer over few rows by a kernel; the bias, which is rare and small, is added by the compiler's code.
pub(super) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, weight, ref bias @ ..] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let element = if bias.is_empty() { out.element } else { ElementType::F32 };
    let Some(kernel) = FewRows::new(b.ty(x), b.ty(weight), element) else {
        return many_rows(b, x, weight, bias.first().copied(), out.element);
    };
    let results = vec![out.with_element(element)];
    let results = context.kernels.call(b, &kernel.kernel(), &[x, weight], results)?;
    let &[bias] = bias else { return Ok(Some(results)) };
    let bias = b.convert(bias, ElementType::F32)?;
    let bias = b.broadcast_like(bias, results[0])?;
    let sum = b.add(results[0], bias)?;
    Ok(Some(vec![b.convert(sum, out.element)?]))
}

/// A linear layer over many rows is left to the compiler, in float32: its code for products of two half-precision matrices is a
/// quarter slower, and the sums are of the same numbers, since such products are exact in float32.
fn many_rows<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<Option<Vec<Value<'f>>>> {
    if b.ty(x).element == ElementType::F32 {
        return Ok(None);
    }
    let x = b.convert(x, ElementType::F32)?;
    Ok(Some(vec![b.linear(x, weight, bias, out)?]))
}
