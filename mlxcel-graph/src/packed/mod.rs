//! Layers with packed weights, as composite operations with a decomposition into plain StableHLO.
//!
//! A packed weight has several operands, one for each [`Part`] of its [`Packing`]; the attribute `packing` of
//! a composite names the packing as text.

mod decode;
#[cfg(test)]
mod tests;

use mlxcel_models::{Packing, Part};
use mlxcel_stablehlo::{Attribute, Builder, ElementType, Error, ErrorKind, Result, TensorType, Value};

use crate::composites::{PACKED_EMBEDDING, PACKED_EXPERT_LINEAR, PACKED_LINEAR};
use crate::layers::{self, ExpertOperands, block_linear, chosen};

const ATTRIBUTE: &str = "packing";

/// A packed matrix `[N, K]`, or several along a dimension in front, in a function that is being written.
#[derive(Clone, Debug)]
pub struct PackedWeight<'f> {
    /// How its values are packed; [ordered](Packing::ordered) or not, its columns are taken as they stand.
    pub packing: Packing,
    /// Its parts in the order of [`Packing::parts`], without [`Part::Order`].
    pub parts: Vec<Value<'f>>,
}

/// The parts that composites over weights packed like this take, in their order.
pub fn operand_parts(packing: &Packing) -> impl Iterator<Item = Part> + use<> {
    packing.parts().filter(|part| *part != Part::Order)
}

/// The packing that the attributes of a composite describe; `None` if they describe something else.
pub fn packing_of(attributes: &[(String, Attribute)]) -> Option<Packing> {
    match attributes {
        [(name, Attribute::Text(text))] if name == ATTRIBUTE => text.parse().ok(),
        _ => None,
    }
}

/// The element type in graphs of a part's elements.
pub fn part_element(packing: &Packing, part: Part) -> ElementType {
    match packing.element(part) {
        mlxcel_models::ElementType::F16 => ElementType::F16,
        mlxcel_models::ElementType::BF16 => ElementType::BF16,
        mlxcel_models::ElementType::U32 => ElementType::U32,
        mlxcel_models::ElementType::I32 => ElementType::I32,
        mlxcel_models::ElementType::U8 => ElementType::U8,
        mlxcel_models::ElementType::I8 => ElementType::I8,
        _ => ElementType::F32,
    }
}

/// A linear layer over a packed weight: `x: [.., K]` times the transpose of `weight: [N, K]`, plus `bias:
/// [N]`, as `out`: `[.., N]`.
///
/// Makes the composite [`PACKED_LINEAR`]. Its decomposition unpacks the whole weight to f32, multiplies and
/// sums in f32, adds the bias in f32 and rounds to `out` once.
///
/// # Errors
/// Parts that are not those of the packing, shapes that do not agree, operands that are not of floats.
pub fn packed_linear<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: &PackedWeight<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<Value<'f>> {
    const OP: &str = "packed_linear";
    let (leading, [outputs, inputs]) = weight.check(b, OP, 0)?;
    debug_assert!(leading.is_empty(), "the result has no leading dimension");
    check_floats(b, OP, x, bias, out)?;
    let fits = b.ty(x).shape.last() == Some(&inputs) && bias.is_none_or(|bias| b.ty(bias).shape == [outputs]);
    if !fits {
        return Err(weight.refusal(b, OP, "x must be [.., K] and bias [N] for a weight of [N, K]"));
    }
    let packing = weight.packing;
    let operands: Vec<_> = std::iter::once(x).chain(weight.parts.iter().copied()).chain(bias).collect();
    let count = weight.parts.len();
    let results = b.composite(PACKED_LINEAR, &operands, &attributes(packing), |b, args| {
        let x = b.convert(args[0], ElementType::F32)?;
        let values = decode::values(b, packing, &args[1..=count])?;
        Ok(vec![b.linear(x, values, args.get(count + 1).copied(), out)?])
    })?;
    Ok(results[0])
}

/// A linear layer in which each block of rows has an expert of its own, as
/// [`expert_linear`](crate::layers::expert_linear) computes it, over packed matrices.
///
/// Makes the composite [`PACKED_EXPERT_LINEAR`]. Its decomposition unpacks the matrices of `experts` alone.
///
/// # Errors
/// The errors of [`packed_linear`] and [`expert_linear`](crate::layers::expert_linear).
pub fn packed_expert_linear<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: &PackedWeight<'f>,
    experts: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<Value<'f>> {
    const OP: &str = "packed_expert_linear";
    let (leading, [outputs, inputs]) = weight.check(b, OP, 1)?;
    let count = leading[0];
    let shown: Vec<_> = weight.named().collect();
    ExpertOperands { x, experts, bias, out }.check(b, OP, &shown, [count, outputs, inputs])?;
    let blocks = b.ty(experts).elements();
    let packing = weight.packing;
    let parts = weight.parts.len();
    let operands: Vec<_> =
        std::iter::once(x).chain(weight.parts.iter().copied()).chain([experts]).chain(bias).collect();
    let results = b.composite(PACKED_EXPERT_LINEAR, &operands, &attributes(packing), |b, args| {
        let x = b.convert(args[0], ElementType::F32)?;
        let experts = args[parts + 1];
        let chosen = chosen(b, experts, count)?;
        let mut taken = Vec::with_capacity(parts);
        for &part in &args[1..=parts] {
            let &[_, rows, width] = &b.shape(part)[..] else { continue };
            let flat = b.reshape(part, &[count, rows * width])?;
            let rows_of_chosen = b.take(flat, chosen)?;
            taken.push(b.reshape(rows_of_chosen, &[blocks * rows, width])?);
        }
        let values = decode::values(b, packing, &taken)?;
        let values = b.reshape(values, &[blocks, outputs, inputs])?;
        let bias = args.get(parts + 2).map(|&bias| b.take(bias, chosen)).transpose()?;
        Ok(vec![block_linear(b, x, values, experts, bias, out)?])
    })?;
    Ok(results[0])
}

/// Rows of a packed `table: [V, H]` by integer `ids` of any shape, in f32: `[..ids, H]`. An id beyond the
/// table takes the nearest row.
///
/// Makes the composite [`PACKED_EMBEDDING`]. Its decomposition takes the rows packed and unpacks those.
///
/// # Errors
/// The errors of [`packed_linear`]; a table without rows; ids that are not integers.
pub fn packed_embedding<'f>(
    b: &mut Builder<'f>,
    table: &PackedWeight<'f>,
    ids: Value<'f>,
) -> Result<Value<'f>> {
    const OP: &str = "packed_embedding";
    let (_, [rows, columns]) = table.check(b, OP, 0)?;
    if !b.ty(ids).element.is_integer() || rows == 0 {
        return Err(table.refusal(b, OP, "ids must be integers, and the table must have at least one row"));
    }
    let packing = table.packing;
    let parts = table.parts.len();
    let operands: Vec<_> = table.parts.iter().copied().chain([ids]).collect();
    let results = b.composite(PACKED_EMBEDDING, &operands, &attributes(packing), |b, args| {
        let mut shape = b.shape(args[parts]);
        let count = shape.iter().product();
        let ids = b.reshape(args[parts], &[count])?;
        let taken = args[..parts].iter().map(|&part| b.take(part, ids)).collect::<Result<Vec<_>>>()?;
        let rows = decode::values(b, packing, &taken)?;
        shape.push(columns);
        Ok(vec![b.reshape(rows, &shape)?])
    })?;
    Ok(results[0])
}

/// The columns of `x: [.., K]` in the order that `order: [K]` i32 gives: column `j` of the result is column
/// `order[j]`.
///
/// # Errors
/// An `order` that is not of i32 or not as long as a row.
pub fn reorder<'f>(b: &mut Builder<'f>, x: Value<'f>, order: Value<'f>) -> Result<Value<'f>> {
    let shape = b.shape(x);
    let columns = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).product();
    let flat = b.reshape(x, &[rows, columns])?;
    let by_column = b.transpose(flat, &[1, 0])?;
    let taken = b.take(by_column, order)?;
    let by_row = b.transpose(taken, &[1, 0])?;
    b.reshape(by_row, &shape)
}

impl<'f> PackedWeight<'f> {
    /// The dimensions before the matrices, and those of a matrix, where the parts are what the packing makes
    /// them.
    fn check(&self, b: &Builder<'f>, op: &'static str, leading: usize) -> Result<(Vec<usize>, [usize; 2])> {
        let refuse = |detail: &str| Err(self.refusal(b, op, detail));
        let names: Vec<_> = operand_parts(&self.packing).collect();
        let Some(codes) = self.parts.first().map(|&codes| b.shape(codes)) else {
            return refuse("a packed weight must have codes");
        };
        let Some((front, &[rows, words])) = codes.split_at_checked(leading) else {
            return refuse("codes must be [.., N, K * bits / 32]");
        };
        let columns = words.saturating_mul(32) / self.packing.bits.max(1);
        if let Err(error) = self.packing.check(columns) {
            return refuse(error.message());
        }
        let fits = names.len() == self.parts.len()
            && names.iter().zip(&self.parts).all(|(&name, &part)| {
                let shape = [front, &[rows, self.packing.width(name, columns)]].concat();
                *b.ty(part) == TensorType::new(part_element(&self.packing, name), shape)
            });
        if !fits {
            return refuse(&format!("the parts do not match [{rows}, {columns}] packed as {}", self.packing));
        }
        Ok((front.to_vec(), [rows, columns]))
    }

    /// The parts with their names, for errors.
    fn named(&self) -> impl Iterator<Item = (String, Value<'f>)> {
        let parts = self.parts.iter().zip(operand_parts(&self.packing));
        parts.map(|(&part, name)| (format!("{name:?}"), part))
    }

    fn refusal(&self, b: &Builder<'f>, op: &'static str, detail: &str) -> Error {
        layers::refusal(b, op, self.named(), ErrorKind::Shape, detail)
    }
}

fn check_floats<'f>(
    b: &Builder<'f>,
    op: &'static str,
    x: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<()> {
    let floats = b.ty(x).element.is_float() && bias.is_none_or(|bias| b.ty(bias).element.is_float());
    if floats && out.is_float() {
        return Ok(());
    }
    let detail = format!("x, bias and the result ({out}) must be of floats");
    Err(Error::new(ErrorKind::Element, op, detail))
}

fn attributes(packing: Packing) -> [(String, Attribute); 1] {
    // Composites compute with columns as they stand.
    let packing = Packing { ordered: false, ..packing };
    [(ATTRIBUTE.to_owned(), Attribute::Text(packing.to_string()))]
}
