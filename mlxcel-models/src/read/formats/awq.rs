//! AWQ: 4-bit weights in the order of its matrix kernels (`version: gemm`, or `format: gemm`).
//!
//! A module has `qweight` `[columns, rows / 8]`, `scales` `[groups, rows]` and, unless symmetric, `qzeros`
//! `[groups, rows / 8]`. A word contains the codes of eight consecutive rows, from the lowest bits those of
//! rows 0, 2, 4, 6, 1, 3, 5, 7. A value is `scale · (code - zero)`.

use std::ops::Range;

use mlxcel_core::Result;

use super::dense;
use super::gptq::{declared_group, layout, write_zeros};
use super::module::Module;
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::packing::{Arrangement, Offset, Packing, Part};
use crate::read::gather::misfit;

const BITS: usize = 4;
/// Rows whose codes share a word.
const SHARED: usize = 8;
/// Where in a word the code of each of its rows is.
const SHIFTS: [usize; SHARED] = [0, 16, 4, 20, 8, 24, 12, 28];

/// The matrix of a module: packed where it has `qweight`, else dense.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    if !checkpoint.has(&format!("{name}.qweight")) {
        return dense(checkpoint, &format!("{name}.weight"), shape);
    }
    let (key, order) = layout(settings, ["version", "format"], "gemm")?;
    if order != "gemm" {
        let message = format!("the order '{}' is not supported; gemm is", order.escape_debug());
        return Err(settings.unsupported(key, message));
    }
    if let Some(bits) = settings.size("bits", 0..=usize::MAX)?.filter(|bits| *bits != BITS) {
        return Err(settings.unsupported("bits", format!("{bits} bits are not supported; 4 are")));
    }
    let declared = declared_group(settings)?;
    let module = Module::new(checkpoint, name, shape)?;
    let codes = module.tensor("qweight")?;
    if !module.rows.is_multiple_of(SHARED) {
        return Err(codes.unsupported(format!("{} rows fill no whole words", module.rows)));
    }
    let words = module.rows / SHARED;
    codes.expect(&[ElementType::I32], &[module.columns, words], "eight codes a word")?;
    let (scales, [groups, stored]) = module.scales(declared)?;
    let zeros = module.filled("qzeros")?;
    if let Some(zeros) = &zeros {
        zeros.expect(&[ElementType::I32], &[groups, words], "a zero for each group and row")?;
    }

    let group_size = module.group_size(stored);
    let element = scales.view.element_type;
    let packing = match zeros {
        Some(_) => Packing { offset: Offset::Zeros, ..Packing::symmetric(BITS, 0, group_size, element) },
        None => Packing::symmetric(BITS, 1 << (BITS - 1), group_size, element),
    };
    module.check(&packing)?;
    let arrangement = Arrangement::Awq { groups: stored.div_ceil(group_size) };
    let in_groups = Arrangement::Grid { rows: 1, groups: stored.div_ceil(group_size), transposed: true };
    let scales = module.part(&packing, Part::Scales, &scales.name, in_groups);
    let zeros = zeros.map(|zeros| module.part(&packing, Part::Offsets, &zeros.name, arrangement));
    let parts: Vec<_> = std::iter::once(scales).chain(zeros).collect();
    Ok(module.part(&packing, Part::Codes, &codes.name, arrangement).with_packing(Packed::new(packing, parts)))
}

/// Writes rows of a part out of the tensor that [`matrix`] names for it; `groups` groups of the packing share
/// a stored one.
pub(in crate::read) fn read(
    checkpoint: &Checkpoint,
    groups: usize,
    part: Part,
    tensor: &str,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let (view, location) = checkpoint.located(tensor)?;
    let &[height, words] = &view.shape[..] else { return Err(misfit(tensor, location)) };
    let done = match part {
        Part::Codes => codes(view.bytes, [height, words], rows, out),
        Part::Offsets => {
            let zero_of = |group: usize, row: usize| {
                let word = view.bytes.as_chunks().0.get(group * words + row / SHARED)?;
                // The mask leaves 4 bits.
                Some((u32::from_le_bytes(*word) >> SHIFTS[row % SHARED] & 15) as u8)
            };
            write_zeros(groups, rows, out, zero_of)
        }
        _ => None,
    };
    done.ok_or_else(|| misfit(tensor, location))
}

/// Writes the codes of rows, eight words by eight rows at a time.
fn codes(stored: &[u8], [height, width]: [usize; 2], rows: Range<usize>, out: &mut [u8]) -> Option<()> {
    /// As many words as a line of the cache has.
    const TILE: usize = 16;
    let (stored, out) = (stored.as_chunks::<4>().0, out.as_chunks_mut::<4>().0);
    let row_words = height / SHARED;
    if rows.end > width * SHARED || out.len() != rows.len() * row_words || stored.len() != height * width {
        return None;
    }
    let columns = rows.start / SHARED..rows.end.div_ceil(SHARED);
    for left in columns.clone().step_by(TILE) {
        for line in 0..row_words {
            for column in left..(left + TILE).min(columns.end) {
                let block: [u32; SHARED] = std::array::from_fn(|index| {
                    u32::from_le_bytes(stored[(line * SHARED + index) * width + column])
                });
                for (row, shift) in (column * SHARED..).zip(SHIFTS).filter(|(row, _)| rows.contains(row)) {
                    let nibbles = block.iter().enumerate();
                    let word =
                        nibbles.fold(0, |word, (index, codes)| word | (codes >> shift & 15) << (4 * index));
                    out[(row - rows.start) * row_words + line] = word.to_le_bytes();
                }
            }
        }
    }
    Some(())
}
