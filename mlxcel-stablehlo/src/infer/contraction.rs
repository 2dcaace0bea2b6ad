//! Reductions and products.

use super::{Site, ascending, distinct, is_number};
use crate::error::Result;
use crate::module::{DotDimensions, Reduction};
use crate::types::{ElementType, TensorType};

/// The type of a reduction: the operand without `dimensions`.
pub fn reduce(operand: &TensorType, reduction: Reduction, dimensions: &[usize]) -> Result<TensorType> {
    let site = Site { op: "reduce", names: &["operand"], types: &[operand] };
    let logical = matches!(reduction, Reduction::And | Reduction::Or);
    if logical == is_number(operand.element) {
        let wanted = if logical { "truth values" } else { "numbers" };
        return Err(site.element(format!("{reduction:?} joins {wanted}, which operand does not hold")));
    }
    dimensions.iter().try_for_each(|&dimension| site.dimension(0, dimension))?;
    ensure!(ascending(dimensions), site.attribute, "dimensions {dimensions:?} must be ascending");
    Ok(without(operand, dimensions))
}

/// The types of the maxima along `dimension` and of their indices, both without that dimension.
pub fn reduce_argmax(
    values: &TensorType,
    indices: &TensorType,
    dimension: usize,
) -> Result<(TensorType, TensorType)> {
    let site = Site { op: "reduce_argmax", names: &["values", "indices"], types: &[values, indices] };
    ensure!(is_number(values.element), site.element, "values must be of numbers");
    site.integers(1)?;
    ensure!(values.shape == indices.shape, site.shape, "values and indices must have the same shape");
    site.dimension(0, dimension)?;
    let size = values.shape[dimension];
    ensure!(size > 0, site.shape, "dimension {dimension} of values has no element to choose");
    Ok((without(values, &[dimension]), without(indices, &[dimension])))
}

fn without(operand: &TensorType, dimensions: &[usize]) -> TensorType {
    let kept = operand.shape.iter().enumerate().filter(|(i, _)| !dimensions.contains(i));
    TensorType::new(operand.element, kept.map(|(_, &size)| size).collect::<Vec<_>>())
}

/// The type of a product of two operands of one element type: batch dimensions, then the remaining dimensions
/// of the left operand, then of the right. `element` must be the same or wider, of the same kind.
pub fn dot_general(
    lhs: &TensorType,
    rhs: &TensorType,
    dimensions: &DotDimensions,
    element: ElementType,
) -> Result<TensorType> {
    let site = Site { op: "dot_general", names: &["lhs", "rhs"], types: &[lhs, rhs] };
    site.same_element(0, 1)?;
    ensure!(is_number(lhs.element), site.element, "lhs and rhs must be of numbers");
    let same_kind =
        lhs.element.is_float() == element.is_float() && lhs.element.is_signed() == element.is_signed();
    // Of two types of one width neither holds the other's numbers.
    let is_wide = element == lhs.element || element.bits() > lhs.element.bits();
    if !same_kind || !is_number(element) || !is_wide {
        return Err(site.element(format!("{element} cannot hold the sums of products of {}", lhs.element)));
    }
    let DotDimensions { lhs_batch, rhs_batch, lhs_contracting, rhs_contracting } = dimensions;
    pairs(&site, "batch", lhs_batch, rhs_batch)?;
    pairs(&site, "contracting", lhs_contracting, rhs_contracting)?;
    let free = |operand: usize, batch: &[usize], contracting: &[usize]| {
        let used = [batch, contracting].concat();
        let name = || site.name(operand);
        ensure!(distinct(&used), site.attribute, "a dimension of {} is named twice: {used:?}", name());
        Ok(without(site.types[operand], &used).shape)
    };
    let mut shape: Vec<usize> = lhs_batch.iter().map(|&dimension| lhs.shape[dimension]).collect();
    shape.extend(free(0, lhs_batch, lhs_contracting)?);
    shape.extend(free(1, rhs_batch, rhs_contracting)?);
    site.sized(TensorType::new(element, shape))
}

fn pairs(site: &Site<'_>, what: &str, lhs: &[usize], rhs: &[usize]) -> Result<()> {
    let pair = lhs.len() == rhs.len();
    ensure!(pair, site.attribute, "{what} dimensions {lhs:?} of lhs and {rhs:?} of rhs do not pair");
    for (&l, &r) in lhs.iter().zip(rhs) {
        site.dimension(0, l)?;
        site.dimension(1, r)?;
        let equal = site.types[0].shape[l] == site.types[1].shape[r];
        ensure!(equal, site.shape, "{what} dimensions {l} of lhs and {r} of rhs differ in size");
    }
    Ok(())
}
