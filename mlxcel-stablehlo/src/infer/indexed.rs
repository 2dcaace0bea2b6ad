//! `gather` and `scatter`. The rules are those of the StableHLO specification for operations without batching
//! dimensions.

use super::{Site, ascending, distinct, is_number};
use crate::error::Result;
use crate::module::{GatherDimensions, ScatterDimensions, ScatterUpdate};
use crate::types::TensorType;

/// The type of a gather.
pub fn gather(
    operand: &TensorType,
    indices: &TensorType,
    dimensions: &GatherDimensions,
) -> Result<TensorType> {
    let types = [operand, indices];
    let site = Site::new("gather", &["operand", "indices"], &types);
    let GatherDimensions {
        offset_dims,
        collapsed_slice_dims,
        start_index_map,
        index_vector_dim,
        slice_sizes,
    } = dimensions;
    index_vectors(&site, "start_index_map", start_index_map, *index_vector_dim)?;
    dropped(&site, "collapsed_slice_dims", collapsed_slice_dims)?;
    site.per_dimension("slice_sizes", slice_sizes.len(), 0)?;
    for (i, (&part, &size)) in slice_sizes.iter().zip(&operand.shape).enumerate() {
        if part > size {
            return Err(site.attribute(format!("slice size {part} of dimension {i}, which has size {size}")));
        }
        if collapsed_slice_dims.contains(&i) && part != 1 {
            return Err(site
                .attribute(format!("slice size {part} of dimension {i}, which is collapsed and must be 1")));
        }
    }
    let offsets: Vec<usize> = kept(slice_sizes, collapsed_slice_dims);
    if offset_dims.len() != offsets.len() {
        return Err(site.attribute(format!(
            "offset_dims {offset_dims:?} must be as many as the {} dimensions of operand that are not collapsed",
            offsets.len()
        )));
    }
    let batch = kept(&indices.shape, &[*index_vector_dim]);
    let rank = batch.len() + offsets.len();
    windows(&site, "offset_dims", offset_dims, rank)?;
    let (mut batch, mut offsets) = (batch.into_iter(), offsets.into_iter());
    let shape: Vec<usize> = (0..rank)
        .filter_map(|i| if offset_dims.contains(&i) { offsets.next() } else { batch.next() })
        .collect();
    site.sized(TensorType::new(operand.element, shape))
}

/// The type of a scatter: the operand's.
pub fn scatter(
    operand: &TensorType,
    indices: &TensorType,
    updates: &TensorType,
    dimensions: &ScatterDimensions,
    update: ScatterUpdate,
) -> Result<TensorType> {
    let types = [operand, indices, updates];
    let site = Site::new("scatter", &["operand", "indices", "updates"], &types);
    let ScatterDimensions {
        update_window_dims,
        inserted_window_dims,
        scatter_dims_to_operand_dims,
        index_vector_dim,
    } = dimensions;
    site.same_element(2, 0)?;
    if update == ScatterUpdate::Add && !is_number(operand.element) {
        return Err(site.element("operand and updates must be of numbers to be added"));
    }
    index_vectors(&site, "scatter_dims_to_operand_dims", scatter_dims_to_operand_dims, *index_vector_dim)?;
    dropped(&site, "inserted_window_dims", inserted_window_dims)?;
    let bounds = kept(&operand.shape, inserted_window_dims);
    if update_window_dims.len() != bounds.len() {
        return Err(site.attribute(format!(
            "update_window_dims {update_window_dims:?} must be as many as the {} dimensions of operand that are not inserted",
            bounds.len()
        )));
    }
    windows(&site, "update_window_dims", update_window_dims, updates.rank())?;
    let batch = kept(&indices.shape, &[*index_vector_dim]);
    if kept(&updates.shape, update_window_dims) != batch {
        return Err(site.shape(format!(
            "the dimensions of updates outside of update_window_dims must be those of indices without index_vector_dim, {batch:?}"
        )));
    }
    for (&dimension, &bound) in update_window_dims.iter().zip(&bounds) {
        if updates.shape[dimension] > bound {
            return Err(
                site.shape(format!("dimension {dimension} of updates is larger than operand's, {bound}"))
            );
        }
    }
    Ok(operand.clone())
}

/// `map` says for each component of an index, which dimension of operand 0 it addresses; `vector` is the
/// dimension of operand 1 that holds the components.
fn index_vectors(site: &Site<'_>, what: &str, map: &[usize], vector: usize) -> Result<()> {
    site.integers(1)?;
    let indices = site.types[1];
    // An index_vector_dim one past the last means indices of one component.
    if vector > indices.rank() {
        let rank = indices.rank();
        return Err(site.attribute(format!("index_vector_dim {vector} of indices, which has rank {rank}")));
    }
    let components = indices.shape.get(vector).copied().unwrap_or(1);
    if map.len() != components {
        return Err(
            site.attribute(format!("{what} {map:?} must have one entry for each of {components} components"))
        );
    }
    map.iter().try_for_each(|&dimension| site.dimension(0, dimension))?;
    if !distinct(map) {
        return Err(site.attribute(format!("{what} {map:?} names a dimension twice")));
    }
    Ok(())
}

/// `dimensions` of operand 0 that windows lack.
fn dropped(site: &Site<'_>, what: &str, dimensions: &[usize]) -> Result<()> {
    dimensions.iter().try_for_each(|&dimension| site.dimension(0, dimension))?;
    if !ascending(dimensions) {
        return Err(site.attribute(format!("{what} {dimensions:?} must be ascending")));
    }
    Ok(())
}

/// `dimensions` of the tensor of `rank` dimensions that holds the windows.
fn windows(site: &Site<'_>, what: &str, dimensions: &[usize], rank: usize) -> Result<()> {
    if !ascending(dimensions) || dimensions.iter().any(|&dimension| dimension >= rank) {
        return Err(
            site.attribute(format!("{what} {dimensions:?} must be ascending and below the rank {rank}"))
        );
    }
    Ok(())
}

/// `sizes` without those at `left_out`.
fn kept(sizes: &[usize], left_out: &[usize]) -> Vec<usize> {
    sizes.iter().enumerate().filter(|(i, _)| !left_out.contains(i)).map(|(_, &size)| size).collect()
}
