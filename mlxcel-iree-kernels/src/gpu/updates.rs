//! Updates at an index that the device computed, as those of a cache at its row's position.
//!
//! The compiler has the host read the index, which waits for the device, and puts it into the commands: they
//! are recorded anew in every call. As a scatter of rows the update reads its index on the device, and the
//! commands of a call are recorded once.

use mlxcel_stablehlo::{
    BinaryOp, ElementType, Literal, Op, OpKind, ScatterDimensions, ScatterUpdate, TensorType,
};

use super::place::Place;

/// `operand` updated from an index on that is constant but in one dimension, with all of the dimensions
/// behind that: a scatter of rows, which are the elements of those dimensions.
pub(super) fn rewrite(place: &mut Place<'_>, op: &Op) -> bool {
    let (OpKind::DynamicUpdateSlice, [operand, update, start @ ..]) = (&op.kind, &op.operands[..]) else {
        return false;
    };
    let (operand, update) = (*operand, *update);
    let (ty, part) = (place.ty(operand).clone(), place.shape(update));
    let known: Vec<Option<usize>> = start.iter().map(|&index| place.index(index)).collect();
    let mut unknown = known.iter().zip(0..).filter(|(index, _)| index.is_none());
    let (Some((_, moving)), None) = (unknown.next(), unknown.next()) else { return false };
    let (sizes, whole) = ty.shape.split_at(moving + 1);
    let fits = known
        .iter()
        .zip(ty.shape.iter().zip(&part))
        .all(|(index, (size, part))| index.is_none_or(|index| index + part <= *size));
    let in_range = i32::try_from(ty.elements()).is_ok();
    if part[moving + 1..] != *whole
        || !fits
        || !in_range
        || place.ty(start[moving]).element != ElementType::I32
    {
        return false;
    }
    let rows_of = &part[..=moving];
    let rows = rows_of.iter().product();
    let mut first = 0;
    for (index, size) in known.iter().zip(sizes) {
        first = first * size + index.unwrap_or(0);
    }
    let scalar = TensorType::scalar(ElementType::I32);
    let least = place.constant(Literal::scalar(0i32));
    let most = place.constant(Literal::scalar((sizes[moving] - part[moving]) as i32));
    let start = place.add(OpKind::Clamp, &[least, start[moving], most], scalar.clone());
    let first = place.constant(Literal::scalar(first as i32));
    let first = place.add(OpKind::Binary(BinaryOp::Add), &[start, first], scalar);
    // The row of an element, were the update at the beginning of all dimensions, is a sum over dimensions.
    let ty_of_rows = TensorType::new(ElementType::I32, rows_of);
    let mut indices = place.broadcast(first, &[], rows_of);
    for (dimension, &size) in rows_of.iter().enumerate().filter(|(_, size)| **size > 1) {
        let stride = sizes[dimension + 1..].iter().product::<usize>();
        let steps: Vec<i32> = (0..size).map(|step| (step * stride) as i32).collect();
        let Some(steps) = Literal::new(vec![size], &steps) else { return false };
        let steps = place.constant(steps);
        let steps = place.broadcast(steps, &[dimension], rows_of);
        indices = place.add(OpKind::Binary(BinaryOp::Add), &[indices, steps], ty_of_rows.clone());
    }
    let indices = place.reshape(indices, [rows, 1]);

    let width = whole.iter().product::<usize>();
    let all = place.reshape(operand, [sizes.iter().product(), width]);
    let updates = place.reshape(update, [rows, width]);
    let dimensions = ScatterDimensions {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
    };
    let kind = OpKind::Scatter { dimensions, update: ScatterUpdate::Replace, unique_indices: true };
    let ty = place.ty(all).clone();
    let updated = place.add(kind, &[all, indices, updates], ty);
    place.end(OpKind::Reshape, &[updated], op.results[0]);
    true
}
