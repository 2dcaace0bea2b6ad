//! Layers over packed weights.
//!
//! A packed weight stays packed until its values are in registers: decoding reads only the packed words from
//! memory. [`Arithmetic`] is the format of the activations; ADR 0009 has the measurements.

mod blocked;
mod buffers;
mod bytes;
mod codes;
mod embedding;
mod form;
mod groups;
mod linear;
mod matrices;
mod prepare;
mod product;
mod small_float;
mod tail;
mod weight;

use mlxcel_graph::packed::{operand_parts, packing_of, part_element};
use mlxcel_models::packing::Code;
use mlxcel_models::{Packing, Part};
use mlxcel_stablehlo::{Attribute, Builder, Composite, ElementType, Result, TensorType, Value};

use super::experts::{self, Blocks};
use super::layout::TensorRole;
use super::norm;
use crate::context::Context;
use embedding::Lookup;
use form::{Arithmetic, Form};
use linear::Linear;
use prepare::Activations;
use product::Product;

/// Whether there are kernels for weights packed like this.
pub(super) fn has_kernels(packing: &Packing) -> bool {
    packing.group_size.is_multiple_of(prepare::LANES)
        && operand_parts(packing).all(|part| contents(packing, part).is_kernels())
}

/// The role of a part of a weight in kernels.
fn contents(packing: &Packing, part: Part) -> TensorRole {
    match (part, packing.code) {
        (Part::Codes, Code::E4M3 | Code::E5M2) => TensorRole::QuantizedFloats,
        (Part::Codes, _) => TensorRole::QuantizedWords { bits: packing.bits },
        _ => TensorRole::GroupParameters(part_element(packing, part)),
    }
}

/// The packing in a composite's attributes, and the roles of the parts of its weight, whose types `operands`
/// begins with; none if there are no kernels for it.
pub(super) fn known(
    attributes: &[(String, Attribute)],
    operands: &[&TensorType],
) -> Option<(Packing, Vec<TensorRole>)> {
    let packing = packing_of(attributes)?;
    let codes = operands.first()?;
    let inputs = codes.shape.last()?.checked_mul(32)?.checked_div(packing.bits)?;
    let is_part = |part: Part, ty: &TensorType| {
        let leading = ty.rank() == codes.rank() && ty.shape[..ty.rank() - 1] == codes.shape[..ty.rank() - 1];
        let width = packing.width(part, inputs);
        leading && ty.shape.last() == Some(&width) && ty.element == part_element(&packing, part)
    };
    let parts: Vec<Part> = operand_parts(&packing).collect();
    let fits = packing.group_size.is_multiple_of(prepare::LANES)
        && packing.check(inputs).is_ok()
        && parts.len() <= operands.len()
        && parts.iter().zip(operands).all(|(&part, ty)| is_part(part, ty));
    fits.then(|| (packing, parts.into_iter().map(|part| contents(&packing, part)).collect()))
}

/// The operands of a composite over a packed weight.
struct Operands<'a, 'f> {
    /// The operands before the weight's parts.
    before: &'a [Value<'f>],
    parts: &'a [Value<'f>],
    behind: &'a [Value<'f>],
    form: Form,
}

impl<'a, 'f> Operands<'a, 'f> {
    /// Those of a composite whose weight begins at operand `first`, if the weight is in panels; for stacked
    /// weights, the form is that of each.
    fn of(composite: &Composite<'a, 'f>, b: &Builder<'f>, context: &Context, first: usize) -> Option<Self> {
        let (before, rest) = composite.operands.split_at_checked(first)?;
        let types: Vec<&TensorType> = rest.iter().map(|&operand| b.ty(operand)).collect();
        let (packing, contents) = known(composite.attributes, &types)?;
        let (parts, behind) = rest.split_at_checked(contents.len())?;
        let in_panels =
            parts.iter().zip(contents).all(|(&part, contents)| context.in_panels(b, part, contents));
        let &[.., outputs, words] = &b.ty(*parts.first()?).shape[..] else { return None };
        let inputs = words * 32 / packing.bits;
        let lanes = context.instructions.lanes();
        let form = Form { outputs, inputs, packing, lanes };
        (in_panels && outputs > 0 && inputs > 0).then_some(Self { before, parts, behind, form })
    }

    /// The parts as kernels take them: calls use types without signedness.
    fn parts(&self, b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
        let signless = |&part: &Value<'f>| match b.ty(part).element {
            ElementType::U32 => b.bitcast_convert(part, ElementType::I32),
            ElementType::U8 => b.bitcast_convert(part, ElementType::I8),
            _ => Ok(part),
        };
        self.parts.iter().map(signless).collect()
    }
}

/// A linear layer: activations are prepared, which layers with the same input share, and multiplied. The
/// bias, which is rare and small, is added by the compiler's code.
pub(super) fn lower_linear<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let Some(operands) = Operands::of(composite, b, context, 1) else { return Ok(None) };
    let &[x] = operands.before else { return Ok(None) };
    let rows = b.ty(x).elements() / operands.form.inputs;
    if rows == 0 || operands.behind.len() > 1 {
        return Ok(None);
    }
    let result = out.with_element(ElementType::F32);
    let mut sum = sums(b, context, &operands, x, Rows::All(rows), result)?;
    if let &[bias] = operands.behind {
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
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let Some(operands) = Operands::of(composite, b, context, 1) else { return Ok(None) };
    let (&[x], &[experts, ref bias @ ..]) = (operands.before, operands.behind) else { return Ok(None) };
    let blocks = Blocks::of(b, x, experts, b.shape(operands.parts[0])[0]);
    let (Some(blocks), [] | [_]) = (blocks, bias) else { return Ok(None) };
    let result = out.with_element(ElementType::F32);
    let mut sum = sums(b, context, &operands, x, Rows::Blocks(blocks, experts), result)?;
    if let &[bias] = bias {
        sum = experts::add_bias(b, sum, experts, bias)?;
    }
    Ok(Some(vec![b.convert(sum, out.element)?]))
}

/// Which rows are multiplied with which matrix.
enum Rows<'f> {
    /// This many rows, one matrix.
    All(usize),
    /// Blocks, each with its expert's matrix.
    Blocks(Blocks, Value<'f>),
}

/// The products with a packed weight, in float32 and without bias.
fn sums<'f>(
    b: &mut Builder<'f>,
    context: &mut Context,
    operands: &Operands<'_, 'f>,
    x: Value<'f>,
    rows: Rows<'f>,
    result: TensorType,
) -> Result<Value<'f>> {
    let form = operands.form;
    let (blocks, experts) = match rows {
        Rows::All(_) => (None, None),
        Rows::Blocks(blocks, experts) => (Some(blocks), Some(experts)),
    };
    let (rows, given) = match rows {
        Rows::All(rows) => (rows, rows),
        Rows::Blocks(blocks, _) => (blocks.rows, blocks.given() * blocks.rows),
    };
    let x = b.convert(x, ElementType::F32)?;
    let arithmetic = Arithmetic::of(&form, &context.instructions, context.precision);
    let lane = if arithmetic == Arithmetic::Float { ElementType::F32 } else { ElementType::I32 };
    let units = form.chunk() / arithmetic.width();
    let ready = vec![
        TensorType::new(lane, [form.chunks(), given, units, arithmetic.planes()]),
        TensorType::new(ElementType::F32, [form.chunks(), given, 2]),
    ];
    let parts = operands.parts(b)?;
    // Equal calls with equal operands are merged by the compiler.
    let product = Product::new(form, arithmetic, context.instructions, rows);
    let normed = norm::of(b, context, x).filter(|(norm, ..)| [norm.rows, norm.width] == [given, form.inputs]);
    let (norm, x) = normed.map_or((None, vec![x]), |(norm, x, weight)| (Some(norm), vec![x, weight]));
    let ready = context.kernels.call(b, &Activations { product, rows: given, norm }, &x, ready)?;
    let operands: Vec<_> = ready.into_iter().chain(parts).chain(experts).collect();
    Ok(context.kernels.call(b, &Linear { product, rows, blocks }, &operands, vec![result])?[0])
}

/// Rows of a packed table.
pub(super) fn lower_embedding<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let Some(operands) = Operands::of(composite, b, context, 0) else { return Ok(None) };
    let &[ids] = operands.behind else { return Ok(None) };
    let count = b.ty(ids).elements();
    if count == 0 {
        return Ok(None);
    }
    let ids = b.convert(ids, ElementType::I32)?;
    let parts = operands.parts(b)?;
    let lookup = Lookup { form: operands.form, count };
    let operands: Vec<_> = parts.into_iter().chain([ids]).collect();
    context.kernels.call(b, &lookup, &operands, vec![out]).map(Some)
}
