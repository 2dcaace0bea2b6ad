//! Replaces RMS norms by [kernels](super::rms_norm).

use mlxcel_stablehlo::ElementType::{BF16, F16, F32};
use mlxcel_stablehlo::{Attribute, Builder, Composite, OpKind, Result, TensorType, Value};

use super::rms_norm::Norm;
use crate::context::{Context, knows_attributes};

/// Replaces a norm by a kernel.
pub(super) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, weight] = *composite.operands else { return Ok(None) };
    let Some(&Attribute::Float(epsilon)) = composite.attribute("eps") else { return Ok(None) };
    let (ty, factors) = (b.ty(x).clone(), b.ty(weight).element);
    let Some((&width, outer)) = ty.shape.split_last() else { return Ok(None) };
    let rows: usize = outer.iter().product();
    let known = [ty.element, factors].iter().all(|element| matches!(element, F32 | BF16 | F16));
    if !known || !knows_attributes(composite, &["eps"]) || rows == 0 || width == 0 {
        return Ok(None);
    }
    let x = b.reshape(x, &[rows, width])?;
    let norm = Norm { rows, width, element: ty.element, factors, epsilon };
    let result = vec![TensorType::new(ty.element, [rows, width])];
    let normalised = context.kernels.call(b, &norm, &[x, weight], result)?[0];
    if let Some((OpKind::CustomCall { target, .. }, _)) = b.definition(normalised) {
        context.norms.insert(target.clone(), norm);
    }
    Ok(Some(vec![b.reshape(normalised, &ty.shape)?]))
}

/// The norm that made `value`, with its operands: rows, and a factor for each of their elements.
pub(super) fn of<'f>(
    b: &Builder<'f>,
    context: &Context,
    value: Value<'f>,
) -> Option<(Norm, Value<'f>, Value<'f>)> {
    let (kind, operands) = b.definition(value)?;
    match (kind, &operands[..]) {
        (OpKind::Reshape, &[reshaped]) => of(b, context, reshaped),
        (OpKind::CustomCall { target, .. }, &[x, weight]) => {
            context.norms.get(target).map(|&norm| (norm, x, weight))
        }
        _ => None,
    }
}
