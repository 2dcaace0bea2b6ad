//! Scaled dot-product attention.

use crate::builder::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Attribute, DotDimensions};
use crate::types::{ElementType, TensorType};

impl<'f> Builder<'f> {
    /// Attention of `T` queries over `S` keys and values: `q: [H, T, d]`, `k: [G, S, d]`, `v: [G, S, e]`, `mask: [T, S]` of
    /// truth values (true: attend), as `out`: `[T, H * e]`, head after head, as the output projection reads it.
    ///
    /// `H` query heads share `G` key-value heads (grouped-query attention, Ainslie et al. 2023): query head `h` reads
    /// key-value head `h / (H / G)`. Scores are multiplied by `scale`, usually one over the square root of `d`.
    ///
    /// Makes the composite [`mlxcel.attention`](crate::composites::ATTENTION) with the attribute `scale`. Its decomposition
    /// computes in f32 throughout, whatever type keys and values are kept in: queries and probabilities rounded to a half type
    /// would cost more accuracy than keys and values do. A query whose mask is nowhere true gets the mean of all values.
    /// Masked values are multiplied by zero, so they must be finite.
    ///
    /// # Errors
    /// Operands of other ranks or element types, or whose sizes do not agree; `H` that is no multiple of `G`.
    pub fn attention(
        &mut self,
        q: Value<'f>,
        k: Value<'f>,
        v: Value<'f>,
        mask: Value<'f>,
        scale: f32,
        out: ElementType,
    ) -> Result<Value<'f>> {
        let sizes = self.attention_sizes([q, k, v, mask], out)?;
        let attributes = [("scale".to_owned(), Attribute::Float(scale))];
        let results =
            self.composite(crate::composites::ATTENTION, &[q, k, v, mask], &attributes, |b, args| {
                Ok(vec![attend(b, args, &sizes, scale, out)?])
            })?;
        Ok(results[0])
    }

    fn attention_sizes(&self, operands: [Value<'f>; 4], out: ElementType) -> Result<Sizes> {
        let types = operands.map(|operand| self.ty(operand).clone());
        let error = |kind, detail: String| {
            let operands =
                ["q", "k", "v", "mask"].into_iter().map(str::to_owned).zip(types.clone()).collect();
            Err(Error::new(kind, "attention", detail).with_operands(operands))
        };
        let [q, k, v, mask] = &types;
        if [q, k, v].iter().any(|ty| !ty.element.is_float())
            || mask.element != ElementType::I1
            || !out.is_float()
        {
            let detail =
                format!("q, k, v and the result ({out}) must be of floats, mask of truth values (i1)");
            return error(ErrorKind::Element, detail);
        }
        let (&[heads, queries, width], &[groups, keys, k_width], &[v_groups, v_keys, v_width]) =
            (&q.shape[..], &k.shape[..], &v.shape[..])
        else {
            return error(ErrorKind::Shape, "q must be [H, T, d], k [G, S, d] and v [G, S, e]".to_owned());
        };
        if k_width != width || v_groups != groups || v_keys != keys || mask.shape != [queries, keys] {
            let detail = "the sizes of q: [H, T, d], k: [G, S, d], v: [G, S, e] and mask: [T, S] must agree";
            return error(ErrorKind::Shape, detail.to_owned());
        }
        if groups == 0 || heads % groups != 0 {
            return error(
                ErrorKind::Shape,
                format!("{heads} query heads cannot share {groups} key-value heads"),
            );
        }
        Ok(Sizes { heads, queries, width, groups, keys, v_width })
    }
}

struct Sizes {
    heads: usize,
    queries: usize,
    width: usize,
    groups: usize,
    keys: usize,
    v_width: usize,
}

fn attend<'d>(
    b: &mut Builder<'d>,
    args: &[Value<'d>],
    sizes: &Sizes,
    scale: f32,
    out: ElementType,
) -> Result<Value<'d>> {
    let &Sizes { heads, queries, width, groups, keys, v_width } = sizes;
    let [q, k, v, mask] = [args[0], args[1], args[2], args[3]];
    let shared = heads / groups;
    let (q, k, v) =
        (b.convert(q, ElementType::F32)?, b.convert(k, ElementType::F32)?, b.convert(v, ElementType::F32)?);
    let q = b.reshape(q, &[groups, shared, queries, width])?;
    let scores = b.dot_general(q, k, by_group(3, 2), ElementType::F32)?;
    let scores_type = TensorType::new(ElementType::F32, [groups, shared, queries, keys]);
    let scale = b.splat(ElementType::F32, f64::from(scale), &scores_type.shape)?;
    let scores = b.multiply(scores, scale)?;

    // A finite stand-in for minus infinity: a row that is masked everywhere stays free of infinity minus infinity.
    let hidden = b.splat(ElementType::F32, f64::from(f32::MIN), &scores_type.shape)?;
    let mask = b.expand(mask, &scores_type.shape, &[0, 1])?;
    let scores = b.select(mask, scores, hidden)?;
    let probabilities = b.softmax(scores, 3)?;

    let mixed = b.dot_general(probabilities, v, by_group(3, 1), ElementType::F32)?;
    let mixed = b.transpose(mixed, &[2, 0, 1, 3])?;
    let mixed = b.reshape(mixed, &[queries, heads * v_width])?;
    b.convert(mixed, out)
}

/// Pairs dimension 0 of both operands as the batch, and contracts the given ones.
fn by_group(lhs: usize, rhs: usize) -> DotDimensions {
    DotDimensions {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![lhs],
        rhs_contracting: vec![rhs],
    }
}
