//! Products with the matrices of experts, each block of rows with that of its own.

use super::quantized::{Packing, QuantizedWeight};
use crate::builder::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Comparison, DotDimensions};
use crate::types::ElementType;

impl<'f> Builder<'f> {
    /// A linear layer in which each block of rows has an expert of its own: block `r` of `x: [R, B, K]` times the transpose of
    /// matrix `experts[r]` of `weight: [E, N, K]`, plus that expert's row of `bias: [E, N]`, as `out`: `[R, B, N]`. An `x` of
    /// one block is that of all. `experts: [R]` are i32; a negative one marks an empty block, whose result is zero, and one
    /// beyond the weight takes the last.
    ///
    /// Makes the composite [`mlxcel.expert_linear`](crate::composites::EXPERT_LINEAR) of three or four operands. Its
    /// decomposition reads the matrices of `experts` alone, and sums and rounds as [`linear`](Self::linear) does.
    ///
    /// # Errors
    /// Operands that are not of floats, or experts that are not of i32; shapes that do not agree; an `out` that is not of
    /// floats.
    pub fn expert_linear(
        &mut self,
        x: Value<'f>,
        weight: Value<'f>,
        experts: Value<'f>,
        bias: Option<Value<'f>>,
        out: ElementType,
    ) -> Result<Value<'f>> {
        const OP: &str = "expert_linear";
        let operands = Operands { x, experts, bias, out };
        let shown = [("weight", weight)];
        if !self.ty(weight).element.is_float() {
            return Err(operands.refusal(self, OP, &shown, ErrorKind::Element, "weight must be of floats"));
        }
        let &[count, outputs, inputs] = &self.ty(weight).shape[..] else {
            return Err(operands.refusal(self, OP, &shown, ErrorKind::Shape, "weight must be [E, N, K]"));
        };
        operands.check(self, OP, &shown, [count, outputs, inputs])?;
        let values: Vec<_> = [x, weight, experts].into_iter().chain(bias).collect();
        let name = crate::composites::EXPERT_LINEAR;
        let results = self.composite(name, &values, &[], |b, args| {
            let chosen = chosen(b, args[2], count)?;
            let weight = take_matrices(b, args[1], chosen)?;
            let (mut x, mut weight) = (args[0], weight);
            if b.ty(x).element != b.ty(weight).element {
                x = b.convert(x, ElementType::F32)?;
                weight = b.convert(weight, ElementType::F32)?;
            }
            products(b, x, weight, args[2], args.get(3).copied(), out)
        })?;
        Ok(results[0])
    }

    /// [`expert_linear`](Self::expert_linear) over packed matrices: the words, scales and biases of `weight` have a leading
    /// dimension of experts.
    ///
    /// Makes the composite [`mlxcel.quantized_expert_linear`](crate::composites::QUANTIZED_EXPERT_LINEAR) of `x`, words,
    /// scales, biases, experts and perhaps the bias, with the attributes `bits` and `group_size`. Its decomposition unpacks
    /// the matrices of `experts` alone, and computes as [`quantized_linear`](Self::quantized_linear) does.
    ///
    /// # Errors
    /// Those of [`expert_linear`](Self::expert_linear); a packing that [`quantized_linear`](Self::quantized_linear) would not
    /// take.
    pub fn quantized_expert_linear(
        &mut self,
        x: Value<'f>,
        weight: QuantizedWeight<'f>,
        experts: Value<'f>,
        bias: Option<Value<'f>>,
        out: ElementType,
    ) -> Result<Value<'f>> {
        const OP: &str = "quantized_expert_linear";
        let operands = Operands { x, experts, bias, out };
        let others: Vec<_> = operands.named().collect();
        let (count, packing) = self.packing_of_experts(OP, &weight, &others)?;
        let shown = [("words", weight.words), ("scales", weight.scales), ("biases", weight.biases)];
        operands.check(self, OP, &shown, [count, packing.rows, packing.columns])?;
        let values: Vec<_> =
            [x, weight.words, weight.scales, weight.biases, experts].into_iter().chain(bias).collect();
        let name = crate::composites::QUANTIZED_EXPERT_LINEAR;
        let results = self.composite(name, &values, &packing.attributes(), |b, args| {
            let x = b.convert(args[0], ElementType::F32)?;
            let chosen = chosen(b, args[4], count)?;
            let blocks = b.shape(chosen)[0];
            let mut parts = [args[1], args[2], args[3]];
            for part in &mut parts {
                let taken = take_matrices(b, *part, chosen)?;
                let width = b.shape(taken)[2];
                *part = b.reshape(taken, &[blocks * packing.rows, width])?;
            }
            let [words, scales, biases] = parts;
            let all = Packing { rows: blocks * packing.rows, ..packing };
            let weight = all.unpack(b, words, scales, biases)?;
            let weight = b.reshape(weight, &[blocks, packing.rows, packing.columns])?;
            products(b, x, weight, args[4], args.get(5).copied(), out)
        })?;
        Ok(results[0])
    }
}

/// What both forms have beside the weight.
struct Operands<'f> {
    x: Value<'f>,
    experts: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
}

impl<'f> Operands<'f> {
    fn named(&self) -> impl Iterator<Item = (&'static str, Value<'f>)> {
        [("x", self.x), ("experts", self.experts)].into_iter().chain(self.bias.map(|bias| ("bias", bias)))
    }

    /// Refuses what does not fit a weight of `[E, N, K]`, which is `shown` where it does not.
    fn check(
        &self,
        b: &Builder<'f>,
        op: &str,
        shown: &[(&'static str, Value<'f>)],
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
            return refuse(ErrorKind::Shape, "there must be one expert at least");
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
        weight: &[(&'static str, Value<'f>)],
        kind: ErrorKind,
        detail: &str,
    ) -> Error {
        let shown = weight.iter().copied().chain(self.named());
        let shown = shown.map(|(name, value)| (name.to_owned(), b.ty(value).clone())).collect();
        Error::new(kind, op, detail).with_operands(shown)
    }
}

/// `experts` as indices of `count` matrices: an empty block has the first.
fn chosen<'d>(b: &mut Builder<'d>, experts: Value<'d>, count: usize) -> Result<Value<'d>> {
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

/// Blocks of `x` times their matrices, with the bias of their experts; zero where there is no expert.
fn products<'d>(
    b: &mut Builder<'d>,
    x: Value<'d>,
    weight: Value<'d>,
    experts: Value<'d>,
    bias: Option<Value<'d>>,
    out: ElementType,
) -> Result<Vec<Value<'d>>> {
    let (x_shape, weight_shape) = (b.shape(x), b.shape(weight));
    let x = if x_shape[0] == weight_shape[0] {
        x
    } else {
        b.broadcast_in_dim(x, &[weight_shape[0], x_shape[1], x_shape[2]], &[0, 1, 2])?
    };
    let dimensions = DotDimensions {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![2],
        rhs_contracting: vec![2],
    };
    let mut sum = b.dot_general(x, weight, dimensions, ElementType::F32)?;
    let shape = b.shape(sum);
    if let Some(bias) = bias {
        let count = b.shape(bias)[0];
        let chosen = chosen(b, experts, count)?;
        let bias = b.take(bias, chosen)?;
        let bias = b.convert(bias, ElementType::F32)?;
        let bias = b.expand(bias, &shape, &[1])?;
        sum = b.add(sum, bias)?;
    }
    let none = b.splat(ElementType::I32, 0.0, &b.shape(experts))?;
    let there = b.compare(experts, none, Comparison::GreaterOrEqual)?;
    let there = b.expand(there, &shape, &[1, 2])?;
    let zero = b.splat(ElementType::F32, 0.0, &shape)?;
    let sum = b.select(there, sum, zero)?;
    Ok(vec![b.convert(sum, out)?])
}
