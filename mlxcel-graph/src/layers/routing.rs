//! Expert routing.

use mlxcel_stablehlo::{
    Attribute, BinaryOp, Builder, Comparison, ElementType, ErrorKind, GatherDimensions, Result,
    ScatterDimensions, ScatterUpdate, TensorType, Value,
};

use super::refusal;
use crate::composites;

/// Token-expert pairs grouped into blocks with one expert each, made by [`group_by_expert`].
///
/// Pair `token * k + choice` is the `choice`th expert of a token. There are `R` blocks of `B` slots; a slot
/// holds one pair or is empty. `R` suffices for any choice of experts, and unneeded blocks are empty.
#[derive(Clone, Copy, Debug)]
pub struct ExpertGroups<'f> {
    /// `[R]` i32: the expert of each block, -1 if it is empty, as [`expert_linear`](super::expert_linear)
    /// takes them.
    pub experts: Value<'f>,
    /// `[R * B]` i32: the pair in each slot; 0 if it is empty.
    pub pairs: Value<'f>,
    /// `[R * B]` i1: whether the slot holds a pair.
    pub valid: Value<'f>,
    /// `[T * k]` i32: the slot of each pair.
    pub slots: Value<'f>,
}

/// The block size with which [`group_by_expert`] should group the `choices` experts of each
/// of `tokens`, out of `experts`: 1 for one token, whose experts all differ; otherwise a power of two up to
/// 16, about twice the average number of rows per expert.
pub fn expert_block(tokens: usize, choices: usize, experts: usize) -> usize {
    if tokens <= 1 {
        return 1;
    }
    let average = tokens.saturating_mul(choices).div_ceil(experts.max(1));
    average.saturating_mul(2).min(16).next_power_of_two()
}

/// The blocks of `block` slots that hold `pairs` whichever of `experts` they have: of the experts that have
/// any, each leaves `block - 1` slots of its last block empty at most.
fn most_blocks(pairs: usize, experts: usize, block: usize) -> usize {
    pairs.saturating_add(pairs.min(experts).saturating_mul(block - 1)) / block
}

/// The `k` largest values of each row of `x: [T, E]` in descending order, and their indices as i32: both `[T,
/// k]`. Ties go to the lower index.
///
/// Makes the composite [`mlxcel.top_k`](crate::composites::TOP_K) with the attribute `k`. Its decomposition
/// counts, for each value, the values that precede it. For rows with NaN the results are arbitrary indices
/// within the row.
///
/// # Errors
/// An `x` that is not floating-point or not two-dimensional; a `k` larger than its second dimension.
pub fn top_k<'f>(b: &mut Builder<'f>, x: Value<'f>, k: usize) -> Result<(Value<'f>, Value<'f>)> {
    let ty = b.ty(x);
    let refuse = |kind, detail: &str| Err(refusal(b, "top_k", [("x", x)], kind, detail));
    if !ty.element.is_float() {
        return refuse(ErrorKind::Element, "x must be of floats");
    }
    let [rows, count] = ty.shape[..] else {
        return refuse(ErrorKind::Shape, "x must be [T, E]");
    };
    if k == 0 || k > count {
        return refuse(ErrorKind::Attribute, &format!("k is {k}, and rows have {count} values"));
    }
    let attributes = [("k".to_owned(), Attribute::Int(k as i64))];
    let results = b.composite(composites::TOP_K, &[x], &attributes, |b, args| {
        let x = args[0];
        let element = b.ty(x).element;
        // Entry (t, e, f): does f stand before e?
        let shape = [rows, count, count];
        let this = b.expand(x, &shape, &[2])?;
        let other = b.expand(x, &shape, &[1])?;
        let larger = b.compare(other, this, Comparison::Greater)?;
        let equal = b.compare(other, this, Comparison::Equal)?;
        let numbers = TensorType::new(ElementType::I32, shape);
        let (e, f) = (b.iota(numbers.clone(), 1)?, b.iota(numbers, 2)?);
        let earlier = b.compare(f, e, Comparison::Less)?;
        let first = b.and(equal, earlier)?;
        let in_front = b.or(larger, first)?;
        let rank = count_true(b, in_front, 2)?;
        // Entry (t, j, e): is e the one in place j?
        let shape = [rows, k, count];
        let places = b.iota(TensorType::new(ElementType::I32, shape), 1)?;
        let rank = b.expand(rank, &shape, &[1])?;
        let here = b.compare(rank, places, Comparison::Equal)?;
        let numbers = b.iota(TensorType::new(ElementType::I32, shape), 2)?;
        let indices = sum_where(b, here, numbers, 2)?;
        // Not a number is before none and behind none, so that places may have several or none.
        let (least, most) = (b.scalar(0i32)?, b.scalar(i32::try_from(count - 1).unwrap_or(i32::MAX))?);
        let indices = b.clamp(least, indices, most)?;
        let x = b.convert(x, ElementType::F32)?;
        let x = b.expand(x, &shape, &[1])?;
        let values = sum_where(b, here, x, 2)?;
        Ok(vec![b.convert(values, element)?, indices])
    })?;
    Ok((results[0], results[1]))
}

/// Groups the experts chosen by tokens, `ids: [T, k]` i32 out of `experts`, into blocks of `block` rows with
/// one expert each, sorted by expert. Blocks of one row are in the order of pairs, and none is empty.
///
/// [`expert_block`] chooses a good block size. Ids are clamped to the number of experts.
///
/// # Errors
/// Ids that are not i32 or not two-dimensional; no experts; an empty block.
pub fn group_by_expert<'f>(
    b: &mut Builder<'f>,
    ids: Value<'f>,
    experts: usize,
    block: usize,
) -> Result<ExpertGroups<'f>> {
    let ty = b.ty(ids);
    let refuse = |kind, detail| Err(refusal(b, "group_by_expert", [("ids", ids)], kind, detail));
    let [tokens, choices] = ty.shape[..] else {
        return refuse(ErrorKind::Shape, "ids must be [T, k]");
    };
    if ty.element != ElementType::I32 {
        return refuse(ErrorKind::Element, "ids must be of i32");
    }
    let Some(last) = experts.checked_sub(1).and_then(|last| i32::try_from(last).ok()) else {
        return refuse(ErrorKind::Attribute, "there must be at least one expert");
    };
    if block == 0 {
        return refuse(ErrorKind::Attribute, "blocks must have at least one row");
    }
    let count = tokens * choices;
    let ids = b.reshape(ids, &[count])?;
    let (least, most) = (b.scalar(0i32)?, b.scalar(last)?);
    let ids = b.clamp(least, ids, most)?;
    let numbers = |shape: &[usize]| TensorType::new(ElementType::I32, shape);
    if block == 1 {
        let pairs = b.iota(numbers(&[count]), 0)?;
        let none = b.splat(ElementType::I32, 0.0, &[count])?;
        let valid = b.compare(pairs, none, Comparison::GreaterOrEqual)?;
        return Ok(ExpertGroups { experts: ids, pairs, valid, slots: pairs });
    }
    let blocks = most_blocks(count, experts, block);
    let size = |b: &mut Builder<'f>, shape: &[usize]| b.splat(ElementType::I32, block as f64, shape);

    // The place of each pair among those of its expert, [P, other].
    let square = [count, count];
    let (this, other) = (b.expand(ids, &square, &[1])?, b.expand(ids, &square, &[0])?);
    let same = b.compare(this, other, Comparison::Equal)?;
    let (p, q) = (b.iota(numbers(&square), 0)?, b.iota(numbers(&square), 1)?);
    let earlier = b.compare(q, p, Comparison::Less)?;
    let same_earlier = b.and(same, earlier)?;
    let place = count_true(b, same_earlier, 1)?;

    // The blocks of each expert, and those before its own, [expert, other].
    let of_expert = [experts, count];
    let (e, id) = (b.iota(numbers(&of_expert), 0)?, b.expand(ids, &of_expert, &[0])?);
    let chosen = b.compare(e, id, Comparison::Equal)?;
    let rows = count_true(b, chosen, 1)?;
    let below = b.splat(ElementType::I32, (block - 1) as f64, &[experts])?;
    let rows = b.add(rows, below)?;
    let divisor = size(b, &[experts])?;
    let own = b.divide(rows, divisor)?;
    let square = [experts, experts];
    let (e, f) = (b.iota(numbers(&square), 0)?, b.iota(numbers(&square), 1)?);
    let smaller = b.compare(f, e, Comparison::Less)?;
    let others = b.expand(own, &square, &[0])?;
    let first = sum_where(b, smaller, others, 1)?;

    // The expert of each block, [block, expert].
    let end = b.add(first, own)?;
    let table = [blocks, experts];
    let r = b.iota(numbers(&table), 0)?;
    let (from, to) = (b.expand(first, &table, &[0])?, b.expand(end, &table, &[0])?);
    let (after, before) =
        (b.compare(r, from, Comparison::GreaterOrEqual)?, b.compare(r, to, Comparison::Less)?);
    let within = b.and(after, before)?;
    let e = b.iota(numbers(&table), 1)?;
    let one = b.splat(ElementType::I32, 1.0, &table)?;
    let number = b.add(e, one)?;
    let found = sum_where(b, within, number, 1)?;
    let one = b.splat(ElementType::I32, 1.0, &[blocks])?;
    let experts_of_blocks = b.subtract(found, one)?;

    // The slot of each pair, and the pair of each slot.
    let first = take_elements(b, first, ids)?;
    let factor = size(b, &[count])?;
    let start = b.multiply(first, factor)?;
    let slots = b.add(start, place)?;
    let empty = b.splat(ElementType::I32, -1.0, &[blocks * block])?;
    let pairs = b.iota(numbers(&[count]), 0)?;
    let dimensions = ScatterDimensions {
        update_window_dims: Vec::new(),
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
    };
    let places = b.reshape(slots, &[count, 1])?;
    let pairs = b.scatter(empty, places, pairs, dimensions, ScatterUpdate::Replace, true)?;
    let none = b.splat(ElementType::I32, 0.0, &[blocks * block])?;
    let valid = b.compare(pairs, none, Comparison::GreaterOrEqual)?;
    let pairs = b.binary(BinaryOp::Maximum, pairs, none)?;
    Ok(ExpertGroups { experts: experts_of_blocks, pairs, valid, slots })
}

/// How many of `truths` hold along `dimension`, as i32.
pub(crate) fn count_true<'f>(b: &mut Builder<'f>, truths: Value<'f>, dimension: usize) -> Result<Value<'f>> {
    let ones = b.convert(truths, ElementType::I32)?;
    b.sum(ones, &[dimension])
}

/// The sum of the `values` along `dimension` where `truths` hold.
fn sum_where<'f>(
    b: &mut Builder<'f>,
    truths: Value<'f>,
    values: Value<'f>,
    dimension: usize,
) -> Result<Value<'f>> {
    let ty = b.ty(values).clone();
    let zero = b.splat(ty.element, 0.0, &ty.shape)?;
    let chosen = b.select(truths, values, zero)?;
    b.sum(chosen, &[dimension])
}

/// Elements of `list: [N]` by `indices: [M]`: `[M]`.
fn take_elements<'f>(b: &mut Builder<'f>, list: Value<'f>, indices: Value<'f>) -> Result<Value<'f>> {
    let dimensions = GatherDimensions {
        offset_dims: Vec::new(),
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        slice_sizes: vec![1],
    };
    b.gather(list, indices, dimensions)
}
