//! Linear layers over weights in panels.
//!
//! [`Format`](format::Format) reads the weight; a [`Product`](product::Product) divides the work. Few rows
//! use [`streamed`], many use [`blocked`]; outputs that fill no panel use [`rest`].

mod blocked;
mod format;
mod matrices;
mod product;
mod rest;
mod streamed;

use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, TensorType, Value};

use super::experts::{self, Blocks};
use super::layout::TensorRole;
use crate::context::{Context, knows_attributes};
use product::Product;

/// Replaces a linear layer by a kernel; the bias, which is rare and small, is added by the compiler's code.
///
/// Weights that are not arguments are not in panels, and are left to the compiler.
pub(super) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, weight, ref bias @ ..] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let known = bias.len() < 2 && knows_attributes(composite, &[]);
    if !known || !context.in_panels(b, weight, TensorRole::Dense(b.ty(weight).element)) {
        return Ok(None);
    }
    let Some(product) = Product::new(b.ty(x), b.ty(weight), context.instructions, None) else {
        return Ok(None);
    };
    let x = product.arranged(b, x)?;
    let sums = TensorType::new(ElementType::F32, [product.rows, product.outputs]);
    let sums = context.kernels.call(b, &product, &[x, weight], vec![sums])?;
    let mut sum = b.reshape(sums[0], &out.shape)?;
    if let &[bias] = bias {
        let bias = b.convert(bias, ElementType::F32)?;
        let bias = b.broadcast_like(bias, sum)?;
        sum = b.add(sum, bias)?;
    }
    Ok(Some(vec![b.convert(sum, out.element)?]))
}

/// Replaces a linear layer whose blocks of rows have an expert each.
pub(super) fn lower_experts<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, weight, experts, ref bias @ ..] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let known = bias.len() < 2 && knows_attributes(composite, &[]);
    if !known || !context.in_panels(b, weight, TensorRole::Dense(b.ty(weight).element)) {
        return Ok(None);
    }
    let blocks = Blocks::of(b, x, experts, b.shape(weight)[0]);
    let product = Product::new(b.ty(x), b.ty(weight), context.instructions, blocks);
    let (Some(product), Some(_)) = (product, blocks) else { return Ok(None) };
    let x = product.arranged(b, x)?;
    let result = out.with_element(ElementType::F32);
    let mut sum = context.kernels.call(b, &product, &[x, weight, experts], vec![result])?[0];
    if let &[bias] = bias {
        sum = experts::add_bias(b, sum, experts, bias)?;
    }
    Ok(Some(vec![b.convert(sum, out.element)?]))
}
