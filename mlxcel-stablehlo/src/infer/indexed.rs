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
    let site = Site { op: "gather", names: &["operand", "indices"], types: &[operand, indices] };
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
        ensure!(part <= size, site.attribute, "slice size {part} of dimension {i}, which has size {size}");
        let fits = part == 1 || !collapsed_slice_dims.contains(&i);
        ensure!(fits, site.attribute, "slice size {part} of dimension {i}, which is collapsed and must be 1");
    }
    let offsets: Vec<usize> = kept(slice_sizes, collapsed_slice_dims);
    let batch = kept(&indices.shape, &[*index_vector_dim]);
    let rank = batch.len() + offsets.len();
    windows(&site, "offset_dims", offset_dims, (offsets.len(), "collapsed"), rank)?;
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
    let site = Site {
        op: "scatter",
        names: &["operand", "indices", "updates"],
        types: &[operand, indices, updates],
    };
    let ScatterDimensions {
        update_window_dims,
        inserted_window_dims,
        scatter_dims_to_operand_dims,
        index_vector_dim,
    } = dimensions;
    site.same_element(2, 0)?;
    let fits = update == ScatterUpdate::Replace || is_number(operand.element);
    ensure!(fits, site.element, "operand and updates must be of numbers to be added");
    index_vectors(&site, "scatter_dims_to_operand_dims", scatter_dims_to_operand_dims, *index_vector_dim)?;
    dropped(&site, "inserted_window_dims", inserted_window_dims)?;
    let bounds = kept(&operand.shape, inserted_window_dims);
    windows(&site, "update_window_dims", update_window_dims, (bounds.len(), "inserted"), updates.rank())?;
    let batch = kept(&indices.shape, &[*index_vector_dim]);
    ensure!(
        kept(&updates.shape, update_window_dims) == batch,
        site.shape,
        "the dimensions of updates outside of update_window_dims must be those of indices without index_vector_dim, {batch:?}"
    );
    for (&dimension, &bound) in update_window_dims.iter().zip(&bounds) {
        let fits = updates.shape[dimension] <= bound;
        ensure!(fits, site.shape, "dimension {dimension} of updates is larger than operand's, {bound}");
    }
    Ok(operand.clone())
}

/// `map` says for each component of an index, which dimension of operand 0 it addresses; `vector` is the
/// dimension of operand 1 that holds the components.
fn index_vectors(site: &Site<'_>, what: &str, map: &[usize], vector: usize) -> Result<()> {
    site.integers(1)?;
    let (indices, rank) = (site.types[1], site.types[1].rank());
    // An index_vector_dim one past the last means indices of one component.
    ensure!(vector <= rank, site.attribute, "index_vector_dim {vector} of indices, which has rank {rank}");
    let components = indices.shape.get(vector).copied().unwrap_or(1);
    let fits = map.len() == components;
    ensure!(fits, site.attribute, "{what} {map:?} must have one entry for each of {components} components");
    map.iter().try_for_each(|&dimension| site.dimension(0, dimension))?;
    ensure!(distinct(map), site.attribute, "{what} {map:?} names a dimension twice");
    Ok(())
}

/// `dimensions` of operand 0 that windows lack.
fn dropped(site: &Site<'_>, what: &str, dimensions: &[usize]) -> Result<()> {
    dimensions.iter().try_for_each(|&dimension| site.dimension(0, dimension))?;
    ensure!(ascending(dimensions), site.attribute, "{what} {dimensions:?} must be ascending");
    Ok(())
}

/// `dimensions` of the tensor of `rank` dimensions that holds the windows: as many as operand 0 has that are
/// not dropped.
fn windows(
    site: &Site<'_>,
    what: &str,
    dimensions: &[usize],
    (kept, dropped): (usize, &str),
    rank: usize,
) -> Result<()> {
    ensure!(
        dimensions.len() == kept,
        site.attribute,
        "{what} {dimensions:?} must be as many as the {kept} dimensions of operand that are not {dropped}"
    );
    let fits = ascending(dimensions) && dimensions.iter().all(|&dimension| dimension < rank);
    ensure!(fits, site.attribute, "{what} {dimensions:?} must be ascending and below the rank {rank}");
    Ok(())
}

/// `sizes` without those at `left_out`.
fn kept(sizes: &[usize], left_out: &[usize]) -> Vec<usize> {
    sizes.iter().enumerate().filter(|(i, _)| !left_out.contains(i)).map(|(_, &size)| size).collect()
}
