//! Normalization.

use mlxcel_stablehlo::{Attribute, Builder, ElementType, ErrorKind, Result, Value};

use super::refusal;
use crate::composites;

/// RMS norm of `x: [.., H]` over its last dimension, times `weight: [H]`, in the type of `x` (Zhang and
/// Sennrich 2019; rounds where Hugging Face's `LlamaRMSNorm` does).
///
/// Makes the composite [`mlxcel.rms_norm`](crate::composites::RMS_NORM) with the attribute `eps`. Its
/// decomposition computes the mean of squares in f32, adds `eps`, and rounds the normalized value to the type
/// of `x` before it multiplies by the weight. If the weight has another type than `x`, that product is
/// computed in f32 and rounded again.
///
/// # Errors
/// Operands that are not floating-point; a weight that does not match the last dimension of `x`; an `eps`
/// that is negative or NaN.
pub fn rms_norm<'f>(b: &mut Builder<'f>, x: Value<'f>, weight: Value<'f>, eps: f32) -> Result<Value<'f>> {
    let (x_type, weight_type) = (b.ty(x), b.ty(weight));
    let named = [("x", x), ("weight", weight)];
    let error = |kind, detail: &str| Err(refusal(b, "rms_norm", named, kind, detail));
    if !x_type.element.is_float() || !weight_type.element.is_float() {
        return error(ErrorKind::Element, "x and weight must be of floats");
    }
    let Some(&width) = x_type.shape.last() else {
        return error(ErrorKind::Shape, "x must have a dimension to normalise over");
    };
    if weight_type.shape != [width] {
        return error(ErrorKind::Shape, "weight must have the last dimension of x");
    }
    if eps.is_nan() || eps < 0.0 {
        return error(ErrorKind::Attribute, &format!("eps is {eps}"));
    }
    let attributes = [("eps".to_owned(), Attribute::Float(eps))];
    let results = b.composite(composites::RMS_NORM, &[x, weight], &attributes, |b, args| {
        let (x, weight) = (args[0], args[1]);
        let last = b.shape(x).len() - 1;
        let wide = b.convert(x, ElementType::F32)?;
        let squares = b.multiply(wide, wide)?;
        let sum = b.sum(squares, &[last])?;
        let rows = b.shape(sum);
        let count = b.splat(ElementType::F32, width as f64, &rows)?;
        let mean = b.divide(sum, count)?;
        let eps = b.splat(ElementType::F32, f64::from(eps), &rows)?;
        let mean = b.add(mean, eps)?;
        let scale = b.rsqrt(mean)?;
        let (element, shape) = (b.ty(x).element, b.shape(x));
        let scale = b.expand(scale, &shape, &[last])?;
        let normalised = b.multiply(wide, scale)?;
        let normalised = b.convert(normalised, element)?;
        let product = if b.ty(weight).element == element { element } else { ElementType::F32 };
        let weight = b.convert(weight, product)?;
        let weight = b.broadcast_like(weight, normalised)?;
        let normalised = b.convert(normalised, product)?;
        let scaled = b.multiply(weight, normalised)?;
        Ok(vec![b.convert(scaled, element)?])
    })?;
    Ok(results[0])
}
