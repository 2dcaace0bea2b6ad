//! Rotary position embedding.

use mlxcel_stablehlo::{Builder, ElementType, ErrorKind, Result, TensorType, Value};

use super::refusal;

/// Rotates the heads of `x: [N, heads, d]` by position (Su et al. 2021), with the cosines and sines of each
/// row's angles, `cos` and `sin: [N, r/2]` in f32.
///
/// The first `r` of the `d` dimensions are rotated, pairing dimension `i` with `i + r/2` (the "rotate half"
/// convention of Hugging Face's Llama); the others do not change. Computed in f32 and rounded to the type of
/// `x` once.
///
/// # Errors
/// Operands with invalid ranks or element types; different numbers of rows; more rotated dimensions than a
/// head has.
pub fn rope<'f>(b: &mut Builder<'f>, x: Value<'f>, cos: Value<'f>, sin: Value<'f>) -> Result<Value<'f>> {
    let types = [b.ty(x).clone(), b.ty(cos).clone(), b.ty(sin).clone()];
    let named = [("x", x), ("cos", cos), ("sin", sin)];
    let error = |kind, detail| Err(refusal(b, "rope", named, kind, detail));
    if !types[0].element.is_float() || types[1].element != ElementType::F32 {
        return error(ErrorKind::Element, "x must be of floats, cos and sin of f32");
    }
    let (&[rows, heads, width], &[angles, half]) = (&types[0].shape[..], &types[1].shape[..]) else {
        return error(ErrorKind::Shape, "x must be [N, heads, d] and cos [N, r/2]");
    };
    if types[1] != types[2] || angles != rows || half > width / 2 {
        let detail = "cos and sin must both be [N, r/2] with r no larger than d of x: [N, heads, d]";
        return error(ErrorKind::Shape, detail);
    }
    if half == 0 {
        return Ok(x);
    }
    let wide = TensorType::new(ElementType::F32, [rows, heads, half]);
    let cos = b.expand(cos, &wide.shape, &[1])?;
    let sin = b.expand(sin, &wide.shape, &[1])?;
    let part =
        |b: &mut Builder<'f>, start: usize, limit: usize| b.slice(x, &[0, 0, start], &[rows, heads, limit]);
    let (low, high) = (part(b, 0, half)?, part(b, half, 2 * half)?);
    let low = b.convert(low, ElementType::F32)?;
    let high = b.convert(high, ElementType::F32)?;
    let (low_cos, high_sin) = (b.multiply(low, cos)?, b.multiply(high, sin)?);
    let (high_cos, low_sin) = (b.multiply(high, cos)?, b.multiply(low, sin)?);
    let rotated = [b.subtract(low_cos, high_sin)?, b.add(high_cos, low_sin)?];
    let mut parts = vec![b.convert(rotated[0], types[0].element)?, b.convert(rotated[1], types[0].element)?];
    if 2 * half < width {
        parts.push(part(b, 2 * half, width)?);
    }
    b.concatenate(&parts, 2)
}

/// The heads of `x: [N, heads, d]` with the pairs `(2i, 2i + 1)` of their first `rotary_dim` elements moved
/// to `(i, i + rotary_dim / 2)`, where [`rope`] pairs them; the other elements do not move.
///
/// For models that rotate adjacent elements (GPT-J's convention). Permuting queries and keys in the same way
/// does not change scores.
///
/// # Errors
/// An operand that is not three-dimensional; a `rotary_dim` that is odd or larger than `d`.
pub fn deinterleave<'f>(b: &mut Builder<'f>, x: Value<'f>, rotary_dim: usize) -> Result<Value<'f>> {
    let error = |kind, detail| Err(refusal(b, "deinterleave", [("x", x)], kind, detail));
    let &[rows, heads, width] = &b.ty(x).shape[..] else {
        return error(ErrorKind::Shape, "x must be [N, heads, d]");
    };
    if rotary_dim > width || !rotary_dim.is_multiple_of(2) {
        return error(ErrorKind::Attribute, "the rotated elements must be pairs of a head's elements");
    }
    let half = rotary_dim / 2;
    let pairs = b.slice(x, &[0, 0, 0], &[rows, heads, rotary_dim])?;
    let pairs = b.reshape(pairs, &[rows, heads, half, 2])?;
    let pairs = b.transpose(pairs, &[0, 1, 3, 2])?;
    let halves = b.reshape(pairs, &[rows, heads, rotary_dim])?;
    if rotary_dim == width {
        return Ok(halves);
    }
    let rest = b.slice(x, &[0, 0, rotary_dim], &[rows, heads, width])?;
    b.concatenate(&[halves, rest], 2)
}

/// The opposite of [`deinterleave`] for all elements of heads: of `x: [N, heads, d]`, elements `i` and `i +
/// d/2` are moved to `2i` and `2i + 1`.
///
/// # Errors
/// An operand that is not three-dimensional; a `d` that is odd.
pub fn interleave<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<Value<'f>> {
    let shape = b.shape(x);
    match shape[..] {
        [rows, heads, width] if width.is_multiple_of(2) => {
            let halves = b.reshape(x, &[rows, heads, 2, width / 2])?;
            let pairs = b.transpose(halves, &[0, 1, 3, 2])?;
            b.reshape(pairs, &shape)
        }
        _ => {
            let detail = "x must be [N, heads, d] with an even d";
            Err(refusal(b, "interleave", [("x", x)], ErrorKind::Shape, detail))
        }
    }
}
