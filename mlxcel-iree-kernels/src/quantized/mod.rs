//! Layers over packed weights.
//!
//! A packed weight stays packed until its values are in registers: decoding reads the words from memory and nothing else of
//! their size. What activations become before they meet it is [`Arithmetic`]'s; ADR 0009 has the measurements.

mod buffers;
mod embedding;
mod form;
mod linear;
mod prepare;
mod product;
mod tail;

use mlxcel_graph::packed::packing_of;
use mlxcel_models::Packing;
use mlxcel_models::packing::{Code, Offset, Scale};
use mlxcel_stablehlo::{Attribute, Builder, Composite, ElementType, Result, TensorType, Value};

use super::Context;
use super::experts::{self, Blocks};
use super::layout::Contents;
use form::{Arithmetic, Form};
use linear::Linear;
use product::Product;

/// The packing that the attributes of a composite tell of, if there are kernels for it.
pub(super) fn known(attributes: &[(String, Attribute)]) -> Option<Packing> {
    let packing = packing_of(attributes)?;
    let Packing { bits, code, group_size, scale, offset, ordered: _ } = packing;
    let affine = matches!((scale, offset), (Scale::Float(scale), Offset::Float(offset)) if scale == offset);
    let fits = code == Code::Integer { zero: 0 }
        && [4, 8].contains(&bits)
        && affine
        && group_size.is_multiple_of(prepare::LANES);
    fits.then_some(packing)
}

/// The form of the packed weight of `[words, scales, biases]`, if it is one that lies in panels; of stacked ones, that of each.
fn form<'f>(
    composite: &Composite<'_, 'f>,
    b: &Builder<'f>,
    context: &Context,
    [words, scales, biases]: [Value<'f>; 3],
) -> Option<Form> {
    let scale = b.ty(scales).element;
    let Packing { bits, group_size, .. } = known(composite.attributes)?;
    let in_panels = context.in_panels(b, words, Contents::Packed { bits })
        && [scales, biases].iter().all(|&part| context.in_panels(b, part, Contents::Groups(scale)));
    let &[.., outputs, row_words] = &b.ty(words).shape[..] else { return None };
    let &[.., groups] = &b.ty(scales).shape[..] else { return None };
    let inputs = row_words * 32 / bits;
    let lanes = context.instructions.lanes();
    (in_panels && outputs > 0 && groups > 0).then_some(Form {
        outputs,
        inputs,
        bits,
        group_size,
        scale,
        lanes,
    })
}

/// A linear layer: activations are made ready, which layers with the same input share, and multiplied. The bias, which is rare
/// and small, is added by the compiler's code.
pub(super) fn lower_linear<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, words, scales, biases, ref bias @ ..] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let Some(form) = form(composite, b, context, [words, scales, biases]) else {
        return Ok(None);
    };
    let rows = b.ty(x).elements() / form.inputs;
    if rows == 0 || bias.len() > 1 {
        return Ok(None);
    }
    let result = out.with_element(ElementType::F32);
    let mut sum = sums(b, context, form, [x, words, scales, biases], Rows::All(rows), result)?;
    if let &[bias] = bias {
        let bias = b.convert(bias, ElementType::F32)?;
        let bias = b.broadcast_like(bias, sum)?;
        sum = b.add(sum, bias)?;
    }
    Ok(Some(vec![b.convert(sum, out.element)?]))
}

/// A linear layer whose blocks of rows have an expert each.
pub(super) fn lower_expert_linear<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [x, words, scales, biases, experts, ref bias @ ..] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let form = form(composite, b, context, [words, scales, biases]);
    let blocks = Blocks::of(b, x, experts, b.shape(words)[0]);
    let (Some(form), Some(blocks), [] | [_]) = (form, blocks, bias) else { return Ok(None) };
    let result = out.with_element(ElementType::F32);
    let mut sum = sums(b, context, form, [x, words, scales, biases], Rows::Blocks(blocks, experts), result)?;
    if let &[bias] = bias {
        sum = experts::add_bias(b, sum, experts, bias)?;
    }
    Ok(Some(vec![b.convert(sum, out.element)?]))
}

/// Which rows meet which matrix.
enum Rows<'f> {
    /// So many rows, one matrix.
    All(usize),
    /// Blocks, each that of its expert.
    Blocks(Blocks, Value<'f>),
}

/// The products with a packed weight, in float32 and without bias.
fn sums<'f>(
    b: &mut Builder<'f>,
    context: &mut Context,
    form: Form,
    [x, words, scales, biases]: [Value<'f>; 4],
    rows: Rows<'f>,
    result: TensorType,
) -> Result<Value<'f>> {
    let (blocks, experts) = match rows {
        Rows::All(_) => (None, None),
        Rows::Blocks(blocks, experts) => (Some(blocks), Some(experts)),
    };
    let (rows, given) = match rows {
        Rows::All(rows) => (rows, rows),
        Rows::Blocks(blocks, _) => (blocks.rows, blocks.given() * blocks.rows),
    };
    let x = b.convert(x, ElementType::F32)?;
    let arithmetic = Arithmetic::of(&context.instructions, context.precision);
    let lane = if arithmetic == Arithmetic::Float { ElementType::F32 } else { ElementType::I32 };
    let units = form.group_size / arithmetic.width();
    let ready = vec![
        TensorType::new(lane, [form.groups(), given, units, arithmetic.planes()]),
        TensorType::new(ElementType::F32, [form.groups(), given, 2]),
    ];
    // Signs are none of a kernel's business, and calls take types without.
    let words = b.bitcast_convert(words, ElementType::I32)?;
    // Equal calls with equal operands are one to the compiler.
    let kernel = prepare::kernel(&form, arithmetic, given);
    let ready = context.kernels.call(b, &kernel, &[x], ready)?;
    let product = Product { form, arithmetic, instructions: context.instructions };
    let kernel = Linear { product, rows, blocks }.kernel();
    let operands: Vec<_> = ready.into_iter().chain([words, scales, biases]).chain(experts).collect();
    Ok(context.kernels.call(b, &kernel, &operands, vec![result])?[0])
}

/// Rows of a packed table.
pub(super) fn lower_embedding<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [words, scales, biases, ids] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let Some(form) = form(composite, b, context, [words, scales, biases]) else {
        return Ok(None);
    };
    let count = b.ty(ids).elements();
    if count == 0 {
        return Ok(None);
    }
    let ids = b.convert(ids, ElementType::I32)?;
    let words = b.bitcast_convert(words, ElementType::I32)?;
    let kernel = embedding::kernel(&form, count);
    context.kernels.call(b, &kernel, &[words, scales, biases, ids], vec![out]).map(Some)
}
