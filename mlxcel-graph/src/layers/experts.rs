//! Linear layers of experts.

use mlxcel_stablehlo::{Builder, Comparison, ElementType, Error, ErrorKind, Result, Value};

use super::{by_group, refusal};
use crate::composites;

/// A linear layer with one expert per block of rows: block `r` of `x: [R, B, K]` times the transpose of
/// matrix `experts[r]` of `weight: [E, N, K]`, plus the expert's row of `bias: [E, N]`, as `out: [R, B, N]`.
/// An `x` with one block is used for all. `experts: [R]` is i32; a negative expert marks an empty block,
/// whose result is zero, and one beyond the weight is clamped.
///
/// Makes the composite [`mlxcel.expert_linear`](crate::composites::EXPERT_LINEAR) with three or four
/// operands. Its decomposition reads only the matrices of `experts`, and sums and rounds like
/// [`Builder::linear`].
///
/// # Errors
/// Operands that are not floating-point, or experts that are not i32; inconsistent shapes; an `out` that is
/// not floating-point.
pub fn expert_linear<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: Value<'f>,
    experts: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<Value<'f>> {
    const OP: &str = "expert_linear";
    let operands = ExpertOperands { x, experts, bias, out };
    let shown = [("weight".to_owned(), weight)];
    if !b.ty(weight).element.is_float() {
        return Err(operands.refusal(b, OP, &shown, ErrorKind::Element, "weight must be of floats"));
    }
    let &[count, outputs, inputs] = &b.ty(weight).shape[..] else {
        return Err(operands.refusal(b, OP, &shown, ErrorKind::Shape, "weight must be [E, N, K]"));
    };
    operands.check(b, OP, &shown, [count, outputs, inputs])?;
    let values: Vec<_> = [x, weight, experts].into_iter().chain(bias).collect();
    let name = composites::EXPERT_LINEAR;
    let results = b.composite(name, &values, &[], |b, args| {
        let chosen = chosen(b, args[2], count)?;
        let weight = take_matrices(b, args[1], chosen)?;
        let (mut x, mut weight) = (args[0], weight);
        if b.ty(x).element != b.ty(weight).element {
            x = b.convert(x, ElementType::F32)?;
            weight = b.convert(weight, ElementType::F32)?;
        }
        let bias = args.get(3).map(|&bias| b.take(bias, chosen)).transpose()?;
        Ok(vec![block_linear(b, x, weight, args[2], bias, out)?])
    })?;
    Ok(results[0])
}

/// Blocks `x: [R, B, K]`, or one block for all, each times the transpose of its own matrix of `weight: [R, N,
/// K]`, plus its row of `bias: [R, N]`, as `out: [R, B, N]`. Blocks with a negative expert in `experts: [R]`
/// (i32) are zero.
///
/// This is [`expert_linear`] after the lookup of the matrices, in plain operations: summed in
/// f32, rounded once.
///
/// # Errors
/// Inconsistent shapes, or operands that are not floating-point.
pub fn block_linear<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: Value<'f>,
    experts: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> Result<Value<'f>> {
    let (x_shape, weight_shape) = (b.shape(x), b.shape(weight));
    let blocks = weight_shape.first().copied();
    let x = match x_shape[..] {
        [1, rows, columns] if blocks != Some(1) => {
            b.broadcast_in_dim(x, &[blocks.unwrap_or(1), rows, columns], &[0, 1, 2])?
        }
        _ => x,
    };
    let mut sum = b.dot_general(x, weight, by_group(2, 2), ElementType::F32)?;
    let shape = b.shape(sum);
    if let Some(bias) = bias {
        let bias = b.convert(bias, ElementType::F32)?;
        let bias = b.expand(bias, &shape, &[1])?;
        sum = b.add(sum, bias)?;
    }
    let none = b.splat(ElementType::I32, 0.0, &b.shape(experts))?;
    let there = b.compare(experts, none, Comparison::GreaterOrEqual)?;
    let there = b.expand(there, &shape, &[1, 2])?;
    let zero = b.splat(ElementType::F32, 0.0, &shape)?;
    let sum = b.select(there, sum, zero)?;
    b.convert(sum, out)
}

/// The operands of [`expert_linear`] beside the weight, and the type of the result.
pub(crate) struct ExpertOperands<'f> {
    pub(crate) x: Value<'f>,
    pub(crate) experts: Value<'f>,
    pub(crate) bias: Option<Value<'f>>,
    pub(crate) out: ElementType,
}

impl<'f> ExpertOperands<'f> {
    fn named(&self) -> impl Iterator<Item = (&'static str, Value<'f>)> {
        [("x", self.x), ("experts", self.experts)].into_iter().chain(self.bias.map(|bias| ("bias", bias)))
    }

    /// Refuses what does not fit a weight of `[E, N, K]`, which is `shown` where it does not.
    pub(crate) fn check(
        &self,
        b: &Builder<'f>,
        op: &str,
        shown: &[(String, Value<'f>)],
        [count, outputs, inputs]: [usize; 3],
    ) -> Result<()> {
        let refuse = |kind, detail: &str| Err(self.refusal(b, op, shown, kind, detail));
        let (x, experts) = (b.ty(self.x), b.ty(self.experts));
        let bias = self.bias.map(|bias| b.ty(bias));
        let floats = x.element.is_float() && bias.is_none_or(|bias| bias.element.is_float());
        if !floats || !self.out.is_float() {
            let detail = format!("x, bias and the result ({}) must be of floats", self.out);
            return refuse(ErrorKind::Element, &detail);
        }
        if experts.element != ElementType::I32 {
            return refuse(ErrorKind::Element, "experts must be of i32");
        }
        let &[blocks] = &experts.shape[..] else {
            return refuse(ErrorKind::Shape, "experts must be [R]");
        };
        if count == 0 {
            return refuse(ErrorKind::Shape, "there must be at least one expert");
        }
        if !matches!(x.shape[..], [of, _, columns] if (of == blocks || of == 1) && columns == inputs) {
            return refuse(ErrorKind::Shape, "x must be [R, B, K] or [1, B, K] for a weight of [E, N, K]");
        }
        if bias.is_some_and(|bias| bias.shape != [count, outputs]) {
            return refuse(ErrorKind::Shape, "bias must be [E, N] for a weight of [E, N, K]");
        }
        Ok(())
    }

    fn refusal(
        &self,
        b: &Builder<'f>,
        op: &str,
        weight: &[(String, Value<'f>)],
        kind: ErrorKind,
        detail: &str,
    ) -> Error {
        let named = self.named().map(|(name, value)| (name.to_owned(), value));
        refusal(b, op, weight.iter().cloned().chain(named), kind, detail)
    }
}

/// `experts` as indices of `count` matrices: an empty block has the first.
pub(crate) fn chosen<'d>(b: &mut Builder<'d>, experts: Value<'d>, count: usize) -> Result<Value<'d>> {
    let least = b.scalar(0i32)?;
    // A weight of more experts than i32 counts has no memory to be in.
    let most = b.scalar(i32::try_from(count - 1).unwrap_or(i32::MAX))?;
    b.clamp(least, experts, most)
}

/// The matrices of `stacked: [E, N, K]` by `indices: [R]`: `[R, N, K]`.
fn take_matrices<'d>(b: &mut Builder<'d>, stacked: Value<'d>, indices: Value<'d>) -> Result<Value<'d>> {
    let shape = b.shape(stacked);
    let flat = b.reshape(stacked, &[shape[0], shape[1] * shape[2]])?;
    let taken = b.take(flat, indices)?;
    let blocks = b.shape(indices)[0];
    b.reshape(taken, &[blocks, shape[1], shape[2]])
}
