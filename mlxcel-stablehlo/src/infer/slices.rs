//! Static and dynamic slices.

use super::Site;
use crate::error::Result;
use crate::types::TensorType;

/// The type of a slice `start..limit` with `stride` in each dimension.
pub fn slice(operand: &TensorType, start: &[usize], limit: &[usize], stride: &[usize]) -> Result<TensorType> {
    let site = Site { op: "slice", names: &["operand"], types: &[operand] };
    site.per_dimension("start", start.len(), 0)?;
    site.per_dimension("limit", limit.len(), 0)?;
    site.per_dimension("stride", stride.len(), 0)?;
    let mut shape = Vec::with_capacity(operand.rank());
    for (i, &size) in operand.shape.iter().enumerate() {
        let (start, limit, stride) = (start[i], limit[i], stride[i]);
        let fits = start <= limit && limit <= size;
        ensure!(fits, site.attribute, "bounds {start}..{limit} of dimension {i}, which has size {size}");
        ensure!(stride > 0, site.attribute, "stride 0 in dimension {i}");
        shape.push((limit - start).div_ceil(stride));
    }
    Ok(TensorType::new(operand.element, shape))
}

/// The type of a slice of `sizes` that starts at one scalar of `starts` per dimension.
pub fn dynamic_slice(operand: &TensorType, starts: &[&TensorType], sizes: &[usize]) -> Result<TensorType> {
    let types: Vec<&TensorType> = [operand].into_iter().chain(starts.iter().copied()).collect();
    let site = Site { op: "dynamic_slice", names: &["operand", "start"], types: &types };
    start_indices(&site, 1)?;
    site.per_dimension("sizes", sizes.len(), 0)?;
    for (i, (&part, &size)) in sizes.iter().zip(&operand.shape).enumerate() {
        ensure!(part <= size, site.attribute, "size {part} of dimension {i}, which has size {size}");
    }
    Ok(TensorType::new(operand.element, sizes))
}

/// The type of the operand with `update` written at one scalar of `starts` per dimension.
pub fn dynamic_update_slice(
    operand: &TensorType,
    update: &TensorType,
    starts: &[&TensorType],
) -> Result<TensorType> {
    let types: Vec<&TensorType> = [operand, update].into_iter().chain(starts.iter().copied()).collect();
    let site = Site { op: "dynamic_update_slice", names: &["operand", "update", "start"], types: &types };
    site.same_element(1, 0)?;
    let fits = update.rank() == operand.rank()
        && update.shape.iter().zip(&operand.shape).all(|(part, size)| part <= size);
    ensure!(fits, site.shape, "update must have the rank of operand and be no larger in any dimension");
    start_indices(&site, 2)?;
    Ok(operand.clone())
}

/// Operands from `first` on are a scalar integer for each dimension of operand 0, all of one type.
fn start_indices(site: &Site<'_>, first: usize) -> Result<()> {
    site.per_dimension("start", site.types.len() - first, 0)?;
    for i in first..site.types.len() {
        site.scalar(i)?;
        site.integers(i)?;
        site.same_element(i, first)?;
    }
    Ok(())
}
