//! Numbers shared by rows and groups: scales per tensor, channel, group or block, stored in either
//! orientation.

use std::ops::Range;

use mlxcel_core::Result;

use super::module::{Module, Stored};
use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::WeightRef;
use crate::element::ElementType;
use crate::packing::{Arrangement, Packing, Part};
use crate::read::gather::misfit;

/// The stored numbers `[height, width]`; a single one, or one dimension of them, counts as one column.
fn sizes(view: &TensorView<'_>) -> Option<[usize; 2]> {
    match view.shape[..] {
        [] => Some([1, 1]),
        [height] => Some([height, 1]),
        [height, width] => Some([height, width]),
        _ => None,
    }
}

/// The scales that `stored` holds for blocks of `block` rows and columns, those at the edges perhaps smaller.
pub(super) fn scales(
    module: &Module<'_>,
    stored: &Stored<'_>,
    packing: &Packing,
    block: [usize; 2],
) -> Result<WeightRef> {
    let [rows, columns] = block.map(|size| size.max(1));
    let expected = [module.rows.div_ceil(rows), module.columns.div_ceil(columns)];
    let (view, element) = (&stored.view, packing.element(Part::Scales));
    if sizes(view) != Some(expected) || view.element_type.bits() != element.bits() {
        let whole = [module.rows, module.columns];
        let why = format!("a scale for each {rows} rows and {columns} columns of {whole:?}");
        stored.expect(&[element], &expected, &why)?;
    }
    let as_is = [module.rows, packing.width(Part::Scales, module.columns)];
    if view.shape == as_is && view.element_type == element {
        return Ok(WeightRef::new(&stored.name, element, as_is));
    }
    let groups = (columns.min(module.columns) / packing.group_size).max(1);
    let arrangement = Arrangement::Grid { rows, groups, transposed: false };
    Ok(module.part(packing, Part::Scales, &stored.name, arrangement))
}

/// Writes rows of a grid of which `rows_of_each` rows and `groups_of_each` groups share a number.
pub(in crate::read) fn read(
    checkpoint: &Checkpoint,
    tensor: &str,
    [rows_of_each, groups_of_each]: [usize; 2],
    transposed: bool,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let (view, location) = checkpoint.located(tensor)?;
    let copied = match view.element_type.bits() {
        8 => copy::<1>(&view, [rows_of_each, groups_of_each], transposed, rows, out),
        16 => copy::<2>(&view, [rows_of_each, groups_of_each], transposed, rows, out),
        32 => copy::<4>(&view, [rows_of_each, groups_of_each], transposed, rows, out),
        _ => None,
    };
    copied.ok_or_else(|| misfit(tensor, location))
}

fn copy<const WIDTH: usize>(
    view: &TensorView<'_>,
    [rows_of_each, groups_of_each]: [usize; 2],
    transposed: bool,
    rows: Range<usize>,
    out: &mut [u8],
) -> Option<()> {
    let [_, width] = sizes(view)?;
    let stored = view.bytes.as_chunks::<WIDTH>().0;
    let out = out.as_chunks_mut::<WIDTH>().0;
    let count = out.len().checked_div(rows.len())?;
    for (row, numbers) in rows.zip(out.chunks_exact_mut(count.max(1))) {
        let row = row.checked_div(rows_of_each)?;
        for (group, number) in numbers.iter_mut().enumerate() {
            let group = group.checked_div(groups_of_each)?;
            let index = if transposed { group * width + row } else { row * width + group };
            *number = *stored.get(index)?;
        }
    }
    Some(())
}

/// The number at `index` of a tensor of floats.
pub(super) fn float(view: &TensorView<'_>, index: usize) -> Option<f32> {
    let two = || view.bytes.as_chunks().0.get(index).copied();
    match view.element_type {
        ElementType::F16 => two().map(|bytes| half::f16::from_le_bytes(bytes).to_f32()),
        ElementType::BF16 => two().map(|bytes| half::bf16::from_le_bytes(bytes).to_f32()),
        ElementType::F32 => view.bytes.as_chunks().0.get(index).map(|bytes| f32::from_le_bytes(*bytes)),
        _ => None,
    }
}
