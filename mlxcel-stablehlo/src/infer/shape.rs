//! Operations that move elements.

use super::{Site, distinct, is_number};
use crate::error::Result;
use crate::types::TensorType;

/// The type of an iota along `dimension` of `result`: that type.
pub fn iota(result: TensorType, dimension: usize) -> Result<TensorType> {
    let site = Site { op: "iota", names: &["operand"], types: &[] };
    ensure!(is_number(result.element), site.element, "result {result} must be of numbers");
    let rank = result.rank();
    ensure!(
        dimension < rank,
        site.attribute,
        "dimension {dimension} of result {result}, which has rank {rank}"
    );
    site.sized(result)
}

/// The type of a reshape.
pub fn reshape(operand: &TensorType, shape: &[usize]) -> Result<TensorType> {
    let site = Site { op: "reshape", names: &["operand"], types: &[operand] };
    let result = site.sized(TensorType::new(operand.element, shape))?;
    let (has, wants) = (operand.elements(), result.elements());
    ensure!(has == wants, site.shape, "operand has {has} elements, but the shape {shape:?} has {wants}");
    Ok(result)
}

/// The type of a broadcast to `shape`; operand dimension `i` is result dimension `dimensions[i]`.
pub fn broadcast_in_dim(operand: &TensorType, shape: &[usize], dimensions: &[usize]) -> Result<TensorType> {
    let site = Site { op: "broadcast_in_dim", names: &["operand"], types: &[operand] };
    site.per_dimension("dimensions", dimensions.len(), 0)?;
    ensure!(distinct(dimensions), site.attribute, "dimensions {dimensions:?} name one twice");
    for (i, &dimension) in dimensions.iter().enumerate() {
        let size = operand.shape[i];
        let Some(&wanted) = shape.get(dimension) else {
            return Err(site.attribute(format!("dimension {dimension} of the result shape {shape:?}")));
        };
        ensure!(
            size == 1 || size == wanted,
            site.shape,
            "dimension {i} of operand has size {size}, which is neither 1 nor dimension {dimension} of the result shape {shape:?}"
        );
    }
    site.sized(TensorType::new(operand.element, shape))
}

/// The type of a transpose: result dimension `i` is operand dimension `permutation[i]`.
pub fn transpose(operand: &TensorType, permutation: &[usize]) -> Result<TensorType> {
    let site = Site { op: "transpose", names: &["operand"], types: &[operand] };
    site.per_dimension("permutation", permutation.len(), 0)?;
    let fits = distinct(permutation) && permutation.iter().all(|&dimension| dimension < operand.rank());
    ensure!(fits, site.attribute, "{permutation:?} is not a permutation of the dimensions of operand");
    let shape: Vec<usize> = permutation.iter().map(|&dimension| operand.shape[dimension]).collect();
    Ok(TensorType::new(operand.element, shape))
}

/// The type of a concatenation along `dimension`.
pub fn concatenate(operands: &[&TensorType], dimension: usize) -> Result<TensorType> {
    let site = Site { op: "concatenate", names: &["operand"], types: operands };
    let Some((first, rest)) = operands.split_first() else {
        return Err(site.attribute("at least one operand is needed"));
    };
    site.dimension(0, dimension)?;
    let mut result = (*first).clone();
    for (i, operand) in rest.iter().enumerate() {
        site.same_element(i + 1, 0)?;
        let fits = operand.rank() == first.rank()
            && (0..first.rank()).all(|d| d == dimension || operand.shape[d] == first.shape[d]);
        let names = || format!("{} must have the shape of {}", site.name(i + 1), site.name(0));
        ensure!(fits, site.shape, "{} except in dimension {dimension}", names());
        result.shape[dimension] = result.shape[dimension].saturating_add(operand.shape[dimension]);
    }
    site.sized(result)
}

/// The type of a padded operand: `low` elements before, `high` after and `interior` between the elements of
/// each dimension; negative counts remove elements.
pub fn pad(
    operand: &TensorType,
    value: &TensorType,
    low: &[i64],
    high: &[i64],
    interior: &[usize],
) -> Result<TensorType> {
    let site = Site { op: "pad", names: &["operand", "value"], types: &[operand, value] };
    site.same_element(1, 0)?;
    site.scalar(1)?;
    site.per_dimension("low", low.len(), 0)?;
    site.per_dimension("high", high.len(), 0)?;
    site.per_dimension("interior", interior.len(), 0)?;
    let mut shape = Vec::with_capacity(operand.rank());
    for (i, &size) in operand.shape.iter().enumerate() {
        let gaps = (size.saturating_sub(1) as i128).saturating_mul(interior[i] as i128);
        let around = size as i128 + i128::from(low[i]) + i128::from(high[i]);
        let padded = gaps.saturating_add(around);
        let Ok(padded) = usize::try_from(padded) else {
            return Err(site.attribute(format!("dimension {i} of the result would have size {padded}")));
        };
        shape.push(padded);
    }
    site.sized(TensorType::new(operand.element, shape))
}
