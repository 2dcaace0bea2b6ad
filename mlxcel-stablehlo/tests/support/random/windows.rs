//! Random windows at run-time places: gather and scatter.

use mlxcel_stablehlo::{
    Builder, ElementType, GatherDimensions, Result, ScatterDimensions, ScatterUpdate, TensorType, Value,
};

use super::{Choices, Extent, of_type, ranked};

/// Positions of `count` window dimensions among `rank`, ascending.
fn positions(c: &mut Choices<'_>, count: usize, rank: usize) -> Vec<usize> {
    let mut positions = c.permutation(rank)[..count].to_vec();
    positions.sort_unstable();
    positions
}

/// The shape that has `windows` at `positions` and `batch` elsewhere.
fn woven(batch: &[usize], windows: &[usize], positions: &[usize]) -> Vec<usize> {
    let (mut batch, mut windows) = (batch.iter(), windows.iter());
    (0..batch.len() + windows.len())
        .map(|i| if positions.contains(&i) { windows.next() } else { batch.next() })
        .map(|size| *size.unwrap())
        .collect()
}

struct Indices<'f> {
    value: Value<'f>,
    batch: Vec<usize>,
    vector_dim: usize,
    map: Vec<usize>,
}

fn indices<'f>(b: &mut Builder<'f>, c: &mut Choices<'_>, rank: usize) -> Result<Indices<'f>> {
    let components = c.below(rank + 1);
    let map = c.permutation(rank)[..components].to_vec();
    let batch = c.shape(2);
    let vector_dim = if components == 1 && c.chance(2) { batch.len() } else { c.below(batch.len() + 1) };
    let mut shape = batch.clone();
    // Without the dimension for components, every index has one.
    if components != 1 || vector_dim != batch.len() || c.chance(2) {
        shape.insert(vector_dim, components);
    }
    let value = b.splat(c.of(&[ElementType::I32, ElementType::I64, ElementType::U8]), 1.0, &shape)?;
    Ok(Indices { value, batch, vector_dim, map })
}

pub(super) fn gather<'f>(b: &mut Builder<'f>, c: &mut Choices<'_>, x: Value<'f>) -> Result<Vec<Value<'f>>> {
    let shape = b.shape(x);
    let collapsed: Vec<usize> =
        c.subset(shape.len()).into_iter().filter(|&dimension| shape[dimension] > 0).collect();
    let indices = indices(b, c, shape.len())?;
    let slice_sizes: Vec<usize> = (shape.iter().enumerate())
        .map(|(i, &size)| if collapsed.contains(&i) { 1 } else { c.size(size) })
        .collect();
    let windows = shape.len() - collapsed.len();
    let dimensions = GatherDimensions {
        offset_dims: positions(c, windows, windows + indices.batch.len()),
        collapsed_slice_dims: collapsed,
        start_index_map: indices.map,
        index_vector_dim: indices.vector_dim,
        slice_sizes,
    };
    Ok(vec![b.gather(x, indices.value, dimensions)?])
}

pub(super) fn scatter<'f>(
    b: &mut Builder<'f>,
    c: &mut Choices<'_>,
    pool: &[Value<'f>],
    x: Value<'f>,
) -> Result<Vec<Value<'f>>> {
    if !c.extent.is_whole() {
        return scatter_rows(b, c, pool, x);
    }
    let (shape, element) = (b.shape(x), b.ty(x).element);
    let inserted = c.subset(shape.len());
    let indices = indices(b, c, shape.len())?;
    let windows: Vec<usize> = (shape.iter().enumerate())
        .filter(|(i, _)| !inserted.contains(i))
        .map(|(_, &size)| c.size(size))
        .collect();
    let positions = positions(c, windows.len(), windows.len() + indices.batch.len());
    let updates = woven(&indices.batch, &windows, &positions);
    let updates = of_type(b, c, pool, &TensorType::new(element, updates))?;
    let dimensions = ScatterDimensions {
        update_window_dims: positions,
        inserted_window_dims: inserted,
        scatter_dims_to_operand_dims: indices.map,
        index_vector_dim: indices.vector_dim,
    };
    let add = element != ElementType::I1 && c.chance(2);
    let update = if add { ScatterUpdate::Add } else { ScatterUpdate::Replace };
    Ok(vec![b.scatter(x, indices.value, updates, dimensions, update, c.chance(2))?])
}

fn scatter_rows<'f>(
    b: &mut Builder<'f>,
    c: &mut Choices<'_>,
    pool: &[Value<'f>],
    x: Value<'f>,
) -> Result<Vec<Value<'f>>> {
    let (x, mut shape) = ranked(b, x)?;
    let rows = 1 + c.below(3);
    let indices = b.splat(ElementType::I32, 0.0, &[rows, 1])?;
    let element = b.ty(x).element;
    let dimensions = ScatterDimensions {
        update_window_dims: (1..shape.len()).collect(),
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
    };
    shape[0] = rows;
    let updates = of_type(b, c, pool, &TensorType::new(element, shape))?;
    let add = element != ElementType::I1 && c.chance(2);
    let update = if add { ScatterUpdate::Add } else { ScatterUpdate::Replace };
    // The result of indices that are declared unique and are not is undefined.
    let unique = c.chance(2) && (rows == 1 || c.extent != Extent::Run);
    Ok(vec![b.scatter(x, indices, updates, dimensions, update, unique)?])
}
