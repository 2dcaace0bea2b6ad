//! Shapes that the compiler writes good kernels for.
//!
//! * It copies each part of a concatenation by a kernel of its own, after the kernel that computes it. Two
//!   equal parts are chosen from by their index instead, which is fused with what computes them: the rotated
//!   halves of queries and keys, and keys beside values.
//! * It reduces a row in one workgroup, as if there were many rows. A row of a vocabulary is reduced by
//!   parts, and then the results are.
//! * It sums the products of probabilities and values in one workgroup for each head, position after
//!   position. Positions are summed by parts too.

use mlxcel_stablehlo::{DotDimensions, Literal, Op, OpKind, Reduction, TensorType, ValueId};

use super::place::Place;

/// From this length on a row is reduced by parts.
const LONG_ROW: usize = 8192;
/// From as many positions on a product sums them by parts.
const MANY_POSITIONS: usize = 128;
/// The largest concatenation that is computed by choice, which reads all that it chooses from.
const LARGEST_CHOICE: usize = 1 << 22;

pub(super) fn rewrite(place: &mut Place<'_>, op: &Op) -> bool {
    match &op.kind {
        OpKind::Concatenate { dimension } => choose(place, op, *dimension),
        OpKind::Reduce { reduction, dimensions } => reduce_by_parts(place, op, *reduction, dimensions),
        OpKind::DotGeneral { dimensions } => contract_by_parts(place, op, dimensions),
        _ => false,
    }
}

/// `concatenate(a, b)` as `select(index == 0, a, b)` over one more dimension.
fn choose(place: &mut Place<'_>, op: &Op, dimension: usize) -> bool {
    let [a, b] = op.operands[..] else { return false };
    let ty = place.ty(a).clone();
    if *place.ty(b) != ty || 2 * ty.elements() > LARGEST_CHOICE || ty.element.bits() == 4 {
        return false;
    }
    let mut apart = ty.shape.clone();
    apart.insert(dimension, 1);
    let mut both = apart.clone();
    both[dimension] = 2;
    let [a, b] = [a, b].map(|part| {
        let part = place.reshape(part, apart.clone());
        let all: Vec<usize> = (0..both.len()).collect();
        place.broadcast(part, &all, &both)
    });
    let Some(first) = Literal::new(vec![2], &[true, false]) else { return false };
    let first = place.constant(first);
    let first = place.broadcast(first, &[dimension], &both);
    let chosen = place.add(OpKind::Select, &[first, a, b], TensorType::new(ty.element, both));
    place.end(OpKind::Reshape, &[chosen], op.results[0]);
    true
}

/// A reduction of long rows as two: of parts of them, and of the results.
fn reduce_by_parts(place: &mut Place<'_>, op: &Op, reduction: Reduction, dimensions: &[usize]) -> bool {
    let row = place.ty(op.operands[0]).clone();
    let last = row.shape.len().wrapping_sub(1);
    let Some(&length) = row.shape.last() else { return false };
    let Some(part) = part_of_row(length).filter(|_| *dimensions == [last]) else { return false };
    let mut shape = row.shape;
    shape[last] = length / part;
    let results = TensorType::new(row.element, shape.clone());
    shape.push(part);
    let parts = place.reshape(op.operands[0], shape);
    let reduce = |dimension| OpKind::Reduce { reduction, dimensions: vec![dimension] };
    let results = place.add(reduce(last + 1), &[parts], results);
    place.end(reduce(last), &[results], op.results[0]);
    true
}

/// The length of the parts of a row: so many warps or subgroups as there are in a workgroup of up to 1,024
/// invocations. None for a row that is short or has no such parts.
fn part_of_row(length: usize) -> Option<usize> {
    (1..=32)
        .rev()
        .map(|subgroups| 32 * subgroups)
        .find(|&part| length >= LONG_ROW && length.is_multiple_of(part))
}

/// `x` (`[g, t, w]`) as `[g * parts, part, w]`. A part of a cache is one of the cache in that shape: the
/// compiler copies a slice that it has to reshape.
fn positions_apart(place: &mut Place<'_>, x: ValueId, [batch, part, width]: [usize; 3]) -> ValueId {
    let sliced = place.producer(x).filter(|op| op.kind == OpKind::Reshape).map(|op| op.operands[0]);
    let slice = sliced.and_then(|sliced| place.producer(sliced)).cloned();
    if let Some(Op { kind: OpKind::Slice { start, limit, stride }, operands, .. }) = slice
        && let (sizes, whole) = (place.shape(operands[0]), place.shape(x))
        && let Some(outer) = sizes.len().checked_sub(whole.len())
    {
        let one = (0..outer).all(|dimension| limit[dimension] == start[dimension] + 1);
        let rest = start[outer..].iter().all(|&start| start == 0) && limit[outer..] == whole;
        if one && rest && sizes[outer..] == whole && stride.iter().all(|&step| step == 1) {
            let index =
                start[..outer].iter().zip(&sizes).fold(0, |index, (start, size)| index * size + start);
            let count = sizes[..outer].iter().product::<usize>();
            let cache = place.reshape(operands[0], [count * batch, part, width]);
            let kind = OpKind::Slice {
                start: vec![index * batch, 0, 0],
                limit: vec![(index + 1) * batch, part, width],
                stride: vec![1; 3],
            };
            let ty = TensorType::new(place.ty(cache).element, [batch, part, width]);
            return place.add(kind, &[cache], ty);
        }
    }
    place.reshape(x, [batch, part, width])
}

/// Pairs dimension 0 of both operands, and contracts the given ones.
pub(super) fn by_group(left: usize, right: usize) -> DotDimensions {
    DotDimensions {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![left],
        rhs_contracting: vec![right],
    }
}

/// `[g, .., t] × [g, t, w]`, a product by groups with few rows in each, as the sum of products of parts of
/// `t`.
fn contract_by_parts(place: &mut Place<'_>, op: &Op, dimensions: &DotDimensions) -> bool {
    let &[left, right] = &op.operands[..] else { return false };
    let (of_left, of_right) = (place.shape(left), place.shape(right));
    let (&[groups, positions, width], [rows @ .., _]) = (&of_right[..], &of_left[..]) else { return false };
    let few = rows.iter().skip(1).product::<usize>() <= 16;
    if *dimensions != by_group(rows.len(), 1) || !few || positions < MANY_POSITIONS {
        return false;
    }
    // As many parts as positions in each, or twice as many.
    let part = 1 << (positions.ilog2() / 2);
    if !positions.is_multiple_of(part) {
        return false;
    }
    let parts = positions / part;
    let batch = groups * parts;
    let rows = &rows[1..];
    let element = place.ty(left).element;
    let apart = place.reshape(left, [&[groups], rows, &[parts, part]].concat());
    let ty = TensorType::new(element, [&[groups, parts], rows, &[part]].concat());
    let permutation = [0, rows.len() + 1].into_iter().chain(1..=rows.len()).chain([rows.len() + 2]).collect();
    let left = place.add(OpKind::Transpose { permutation }, &[apart], ty);
    let left = place.reshape(left, [batch, rows.iter().product(), part]);
    let right = positions_apart(place, right, [batch, part, width]);
    let dimensions = by_group(2, 1);
    let element = place.ty(op.results[0]).element;
    let products = TensorType::new(element, [batch, rows.iter().product(), width]);
    let products = place.add(OpKind::DotGeneral { dimensions }, &[left, right], products);
    let products = place.reshape(products, [&[groups, parts], rows, &[width]].concat());
    let sum = OpKind::Reduce { reduction: Reduction::Sum, dimensions: vec![1] };
    place.end(sum, &[products], op.results[0]);
    true
}
