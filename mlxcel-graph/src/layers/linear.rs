//! Linear layers.

use mlxcel_stablehlo::{Builder, ElementType, Result, Value};

use crate::composites;

/// A linear layer: `x: [.., K]` times the transpose of `weight: [N, K]`, plus `bias: [N]`, as `out: [.., N]`.
///
/// Makes the composite [`mlxcel.linear`](composites::LINEAR) with two or three operands, whose decomposition
/// is [`Builder::linear`].
///
/// # Errors
/// The errors of [`Builder::linear`].
pub fn linear<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<Value<'f>> {
    let operands: Vec<Value<'f>> = [x, weight].into_iter().chain(bias).collect();
    let results = b.composite(composites::LINEAR, &operands, &[], |b, args| {
        Ok(vec![b.linear(args[0], args[1], args.get(2).copied(), out)?])
    })?;
    Ok(results[0])
}
