//! The memory layout of one position and head of keys or values in a KV cache.

use mlxcel_stablehlo::{Builder, Comparison, ElementType, Result, Value};

/// The bytes of the scale behind values that are kept in 8 bits.
const SCALE_BYTES: usize = 4;

/// The greatest finite float16.
const LARGEST_F16: f64 = 65504.0;

/// How many elements `element` has for `d` values, if caches may be of it.
pub(super) fn width(element: ElementType, d: usize) -> Option<usize> {
    match element {
        ElementType::I8 => Some(d + SCALE_BYTES),
        element => element.is_float().then_some(d),
    }
}

/// `x` (`[.., d]` f32) as a cache of `element` keeps it.
pub(super) fn pack<'d>(b: &mut Builder<'d>, x: Value<'d>, element: ElementType) -> Result<Value<'d>> {
    if element != ElementType::I8 {
        return saturated(b, x, element);
    }
    let shape = b.shape(x);
    let last = shape.len() - 1;
    let magnitudes = b.abs(x)?;
    let largest = b.max(magnitudes, &[last])?;
    let rows = shape[..last].to_vec();
    let steps = b.splat(ElementType::F32, 127.0, &rows)?;
    let scale = b.divide(largest, steps)?;
    // Where all are zero, zero is a multiple of any scale; dividing by none keeps them so.
    let none = b.splat(ElementType::F32, 0.0, &rows)?;
    let one = b.splat(ElementType::F32, 1.0, &rows)?;
    let empty = b.compare(scale, none, Comparison::Equal)?;
    let divisor = b.select(empty, one, scale)?;
    let divisor = b.expand(divisor, &shape, &[last])?;
    let multiples = b.divide(x, divisor)?;
    let multiples = b.round_nearest_even(multiples)?;
    // A scale that underflows is coarser than its values say.
    let most = b.splat(ElementType::F32, 127.0, &shape)?;
    let least = b.splat(ElementType::F32, -127.0, &shape)?;
    let multiples = b.clamp(least, multiples, most)?;
    let bytes = b.convert(multiples, ElementType::I8)?;
    let scale = b.bitcast_convert(scale, ElementType::I8)?;
    b.concatenate(&[bytes, scale], last)
}

/// `x` (f32) as floats of `element`, the greatest finite one in place of an infinity that only the conversion
/// would make. Attention multiplies hidden values by zero: an infinity among them would be no number for
/// every token of the row, also where it belongs to a padding or dropped position.
pub(super) fn saturated<'d>(b: &mut Builder<'d>, x: Value<'d>, element: ElementType) -> Result<Value<'d>> {
    // bfloat16 has the range of f32.
    if element != ElementType::F16 {
        return b.convert(x, element);
    }
    let least = b.splat(ElementType::F32, -LARGEST_F16, &[])?;
    let most = b.splat(ElementType::F32, LARGEST_F16, &[])?;
    let x = b.clamp(least, x, most)?;
    b.convert(x, element)
}

/// What [`pack`] made, as floats: `[.., d]`.
pub(super) fn unpack<'d>(b: &mut Builder<'d>, x: Value<'d>) -> Result<Value<'d>> {
    if b.ty(x).element != ElementType::I8 {
        return Ok(x);
    }
    let shape = b.shape(x);
    let last = shape.len() - 1;
    let d = shape[last] - SCALE_BYTES;
    let mut start = vec![0; shape.len()];
    let mut limit = shape.clone();
    limit[last] = d;
    let bytes = b.slice(x, &start, &limit)?;
    start[last] = d;
    let scale = b.slice(x, &start, &shape)?;
    let scale = b.bitcast_convert(scale, ElementType::F32)?;
    let bytes = b.convert(bytes, ElementType::F32)?;
    let scale = b.expand(scale, &limit, &[last])?;
    b.multiply(bytes, scale)
}
