//! Matrices whose columns and rows add up to one.

use mlxcel_stablehlo::{Builder, Comparison, ElementType, ErrorKind, Result, Value};

use super::refusal;

/// The matrices `x: [N, n, n]` (f32) with columns divided by their sums plus `epsilon`, `iterations` times,
/// and rows between (Sinkhorn and Knopp, 1967).
///
/// # Errors
/// An operand of another rank or element type.
pub fn balance<'f>(b: &mut Builder<'f>, x: Value<'f>, epsilon: f32, iterations: usize) -> Result<Value<'f>> {
    let ty = b.ty(x);
    if ty.shape.len() != 3 || ty.element != ElementType::F32 {
        return Err(refusal(b, "balance", [("x", x)], ErrorKind::Shape, "x must be [N, n, n] of f32"));
    }
    let x = divided(b, x, 1, epsilon)?;
    if iterations <= 1 {
        return Ok(x);
    }
    let first = b.scalar(1i32)?;
    let carried = b.while_loop(
        &[first, x],
        |b, carried| {
            let end = b.scalar(i32::try_from(iterations).unwrap_or(i32::MAX))?;
            b.compare(carried[0], end, Comparison::Less)
        },
        |b, carried| {
            let &[index, x] = carried else { unreachable!("the loop carries two values") };
            let one = b.scalar(1i32)?;
            let next = b.add(index, one)?;
            let x = divided(b, x, 2, epsilon)?;
            Ok(vec![next, divided(b, x, 1, epsilon)?])
        },
    )?;
    Ok(carried[1])
}

/// `x` divided by its sums along a dimension, plus `epsilon`.
fn divided<'f>(b: &mut Builder<'f>, x: Value<'f>, dimension: usize, epsilon: f32) -> Result<Value<'f>> {
    let shape = b.shape(x);
    let sums = b.sum(x, &[dimension])?;
    let epsilon = b.splat(ElementType::F32, f64::from(epsilon), &b.shape(sums))?;
    let sums = b.add(sums, epsilon)?;
    let sums = b.expand(sums, &shape, &[dimension])?;
    b.divide(x, sums)
}
