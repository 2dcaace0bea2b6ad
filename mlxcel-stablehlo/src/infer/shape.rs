//! Operations that move elements.

use super::{Site, distinct, is_number};
use crate::error::Result;
use crate::types::TensorType;

/// The type of an iota along `dimension` of `result`: that type.
pub fn iota(result: TensorType, dimension: usize) -> Result<TensorType> {
    let site = Site::new("iota", &["operand"], &[]);
    if !is_number(result.element) {
        return Err(site.element(format!("result {result} must be of numbers")));
    }
    if dimension >= result.rank() {
        return Err(site.attribute(format!(
            "dimension {dimension} of result {result}, which has rank {}",
            result.rank()
        )));
    }
    site.sized(result)
}

/// The type of a reshape.
pub fn reshape(operand: &TensorType, shape: &[usize]) -> Result<TensorType> {
    let types = [operand];
    let site = Site::new("reshape", &["operand"], &types);
    let result = site.sized(TensorType::new(operand.element, shape))?;
    if result.elements() != operand.elements() {
        let (has, wants) = (operand.elements(), result.elements());
        return Err(site.shape(format!("operand has {has} elements, but the shape {shape:?} has {wants}")));
    }
    Ok(result)
}

/// The type of a broadcast to `shape`; operand dimension `i` is result dimension `dimensions[i]`.
pub fn broadcast_in_dim(operand: &TensorType, shape: &[usize], dimensions: &[usize]) -> Result<TensorType> {
    let types = [operand];
    let site = Site::new("broadcast_in_dim", &["operand"], &types);
    site.per_dimension("dimensions", dimensions.len(), 0)?;
    if !distinct(dimensions) {
        return Err(site.attribute(format!("dimensions {dimensions:?} name one twice")));
    }
    for (i, &dimension) in dimensions.iter().enumerate() {
        let size = operand.shape[i];
        match shape.get(dimension) {
            None => {
                return Err(site.attribute(format!("dimension {dimension} of the result shape {shape:?}")));
            }
            Some(&wanted) if size != 1 && size != wanted => {
                return Err(site.shape(format!(
                    "dimension {i} of operand has size {size}, which is neither 1 nor dimension {dimension} of the result shape {shape:?}"
                )));
            }
            Some(_) => {}
        }
    }
    site.sized(TensorType::new(operand.element, shape))
}

/// The type of a transpose: result dimension `i` is operand dimension `permutation[i]`.
pub fn transpose(operand: &TensorType, permutation: &[usize]) -> Result<TensorType> {
    let types = [operand];
    let site = Site::new("transpose", &["operand"], &types);
    site.per_dimension("permutation", permutation.len(), 0)?;
    if !distinct(permutation) || permutation.iter().any(|&dimension| dimension >= operand.rank()) {
        return Err(
            site.attribute(format!("{permutation:?} is not a permutation of the dimensions of operand"))
        );
    }
    let shape: Vec<usize> = permutation.iter().map(|&dimension| operand.shape[dimension]).collect();
    Ok(TensorType::new(operand.element, shape))
}

/// The type of a concatenation along `dimension`.
pub fn concatenate(operands: &[&TensorType], dimension: usize) -> Result<TensorType> {
    let site = Site::new("concatenate", &["operand"], operands);
    let Some((first, rest)) = operands.split_first() else {
        return Err(site.attribute("at least one operand is needed"));
    };
    site.dimension(0, dimension)?;
    let mut result = (*first).clone();
    for (i, operand) in rest.iter().enumerate() {
        site.same_element(i + 1, 0)?;
        let fits = operand.rank() == first.rank()
            && (0..first.rank()).all(|d| d == dimension || operand.shape[d] == first.shape[d]);
        if !fits {
            let (name, other) = (site.name(i + 1), site.name(0));
            return Err(
                site.shape(format!("{name} must have the shape of {other} except in dimension {dimension}"))
            );
        }
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
    let types = [operand, value];
    let site = Site::new("pad", &["operand", "value"], &types);
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
