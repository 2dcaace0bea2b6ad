//! GPTQ, as written by AutoGPTQ and GPTQModel.
//!
//! A module has `qweight` `[columns · bits / 32, rows]`, whose words contain the codes of a row as a bit
//! stream down a column; `scales` `[groups, rows]`; `qzeros` `[groups, rows · bits / 32]`, a bit stream along
//! the rows, each zero point minus one except in format `gptq_v2`; and optionally `g_idx` `[columns]`, the
//! group of each column. A value is `scale · (code - zero)`.
//!
//! Groups need not be consecutive columns ("act-order"): columns are then sorted by group at load, and the
//! layer's inputs are permuted accordingly. Bits and group size are derived from the tensors, because they
//! may differ between modules.

use std::ops::Range;

use mlxcel_core::Result;

use super::module::{Module, Stored};
use super::{dense, stream};
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::packing::{Arrangement, Gptq, Offset, Packing, Part};
use crate::read::gather::misfit;

const WIDTHS: [usize; 6] = [2, 3, 4, 5, 6, 8];

/// The matrix of a module: packed where it has `qweight`, else dense.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    let (key, layout) = layout(settings, ["checkpoint_format", "format"], "gptq")?;
    let less_one = match &*layout {
        "gptq" => true,
        "gptq_v2" => false,
        other => {
            let message = format!(
                "the format '{}' is not supported; gptq and gptq_v2 are, to which GPTQModel converts",
                other.escape_debug()
            );
            return Err(settings.unsupported(key, message));
        }
    };
    matrix_of(checkpoint, settings, less_one, name, shape)
}

/// The same where `less_one` says whether stored zeros are those of values less one.
pub(super) fn matrix_of(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    less_one: bool,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    if !checkpoint.has(&format!("{name}.qweight")) {
        return dense(checkpoint, &format!("{name}.weight"), shape);
    }
    let module = Module::new(checkpoint, name, shape)?;
    let symmetric = settings.flag("sym")?.unwrap_or(false);
    let declared = declared_group(settings)?;

    let codes = module.tensor("qweight")?;
    let [words, rows] = codes.matrix()?;
    let bits =
        WIDTHS.into_iter().find(|bits| module.columns.checked_mul(*bits) == Some(words.saturating_mul(32)));
    let Some(bits) = bits.filter(|_| rows == module.rows && codes.view.element_type == ElementType::I32)
    else {
        return Err(codes.refuse(format!(
            "the tensor is {} {:?}, which are not the codes of [{}, {}] in {WIDTHS:?} bits, I32 [columns * bits / 32, rows]",
            codes.view.element_type, codes.view.shape, module.rows, module.columns
        )));
    };
    let (scales, [groups, stored]) = module.scales(declared)?;
    let zeros = module.tensor("qzeros")?;
    if !(module.rows * bits).is_multiple_of(32) {
        return Err(
            zeros.unsupported(format!("zeros of {} rows in {bits} bits fill no whole words", module.rows))
        );
    }
    zeros.expect(&[ElementType::I32], &[groups, module.rows * bits / 32], "a zero for each group and row")?;
    let ordered = match module.filled("g_idx")? {
        None => false,
        Some(of_columns) => sort(&module, &of_columns, groups, stored)?,
    };

    let constant = if symmetric { constant(&zeros, bits, less_one) } else { None };
    let group_size = module.group_size(stored);
    let packing = match constant {
        Some(zero) => Packing::symmetric(bits, zero, group_size, scales.view.element_type),
        None => Packing {
            offset: Offset::Zeros,
            ..Packing::symmetric(bits, 0, group_size, scales.view.element_type)
        },
    };
    let packing = Packing { ordered, ..packing };
    module.check(&packing)?;
    let (scales, zeros, of_columns) = (&scales.name, &zeros.name, format!("{name}.g_idx"));
    let arrangement =
        Arrangement::Gptq(Gptq { bits, groups: stored.div_ceil(group_size), less_one, ordered });
    let in_groups = Arrangement::Grid { rows: 1, groups: stored.div_ceil(group_size), transposed: true };
    let parts: Vec<_> = packing
        .parts()
        .skip(1)
        .map(|part| match part {
            Part::Scales => module.part(&packing, part, scales, in_groups),
            Part::Order => module.part(&packing, part, &of_columns, arrangement),
            _ => module.part(&packing, part, zeros, arrangement),
        })
        .collect();
    Ok(module.part(&packing, Part::Codes, &codes.name, arrangement).with_packing(Packed::new(packing, parts)))
}

/// The layout that the first of `keys` names, two names of one setting, in lower case, and that key; or else
/// the `default`.
pub(super) fn layout(
    settings: Fields<'_>,
    keys: [&'static str; 2],
    default: &str,
) -> Result<(&'static str, String)> {
    for key in keys {
        if let Some(name) = settings.text(key)? {
            return Ok((key, name.to_lowercase()));
        }
    }
    Ok((keys[0], default.to_owned()))
}

/// The setting `group_size`; -1 means whole rows.
pub(super) fn declared_group(settings: Fields<'_>) -> Result<Option<usize>> {
    const KEY: &str = "group_size";
    if settings.get(KEY).and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    settings.size(KEY, 1..=usize::MAX)
}

/// Whether columns must be sorted by their groups, of which all but the last have `size`.
pub(super) fn sort(module: &Module<'_>, of_columns: &Stored<'_>, groups: usize, size: usize) -> Result<bool> {
    of_columns.expect(&[ElementType::I32], &[module.columns], "the group of each column")?;
    let mut counts = vec![0usize; groups];
    let mut sorted = true;
    for (column, group) in stream::groups(of_columns.view.bytes).enumerate() {
        let index = usize::try_from(group).ok();
        let Some(count) = index.and_then(|index| counts.get_mut(index)) else {
            let message = format!("column {column} is in group {group}, and the scales have {groups} groups");
            return Err(of_columns.refuse(message));
        };
        *count += 1;
        sorted &= index == Some(column / size);
    }
    for (group, count) in counts.into_iter().enumerate() {
        let expected = size.min(module.columns - group * size);
        if count != expected {
            let message = format!(
                "group {group} has {count} columns and should have {expected}; quantize with static groups, or convert to dense"
            );
            return Err(of_columns.unsupported(message));
        }
    }
    Ok(!sorted)
}

/// The zero that all groups have, if they have one.
fn constant(zeros: &Stored<'_>, bits: usize, less_one: bool) -> Option<u8> {
    let mut codes = vec![0; zeros.view.bytes.len() * 8 / bits];
    stream::unpack(zeros.view.bytes, bits, &mut codes);
    let first = *codes.first()?;
    codes.iter().all(|code| *code == first).then(|| zero(first, bits, less_one))
}

/// A zero from its code: it is counted in as many bits as a code has.
fn zero(code: u8, bits: usize, less_one: bool) -> u8 {
    // The mask leaves 8 bits at most.
    ((u16::from(code) + u16::from(less_one)) & ((1 << bits) - 1)) as u8
}

impl Gptq {
    /// Writes rows of a part out of the tensor that [`matrix`] names for it.
    pub(in crate::read) fn read(
        &self,
        checkpoint: &Checkpoint,
        part: Part,
        tensor: &str,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let (view, location) = checkpoint.located(tensor)?;
        let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
        let done = match (part, &view.shape[..]) {
            (Part::Codes, &[words, columns]) => {
                let done = transpose(view.bytes, [words, columns], rows, out);
                if done.is_some() && self.ordered {
                    let (groups, _) = checkpoint.located(&format!("{module}.g_idx"))?;
                    self.sort(groups.bytes, words, out);
                }
                done
            }
            (Part::Offsets, &[_, words]) => {
                let zero_of = |group: usize, row: usize| {
                    let zeros = view.bytes.get(group * words * 4..(group + 1) * words * 4)?;
                    Some(zero(code(zeros, row, self.bits)?, self.bits, self.less_one))
                };
                write_zeros(self.groups, rows, out, zero_of)
            }
            (Part::Order, _) => write_order(view.bytes, out),
            _ => None,
        };
        done.ok_or_else(|| misfit(tensor, location))
    }

    /// Sorts the codes of rows of this many words by the groups of their columns.
    fn sort(&self, groups: &[u8], words: usize, out: &mut [u8]) {
        let order = stream::order(groups);
        let mut scratch = vec![0; order.len()];
        for row in out.chunks_exact_mut((words * 4).max(1)) {
            stream::reorder(row, self.bits, &order, &mut scratch);
        }
    }
}

/// Writes the columns `rows` of a matrix of 32-bit words as rows.
fn transpose(stored: &[u8], [height, width]: [usize; 2], rows: Range<usize>, out: &mut [u8]) -> Option<()> {
    /// As many words as a line of the cache has.
    const TILE: usize = 16;
    let (stored, out) = (stored.as_chunks::<4>().0, out.as_chunks_mut::<4>().0);
    if rows.end > width || out.len() != rows.len() * height || stored.len() != height * width {
        return None;
    }
    for top in (0..height).step_by(TILE) {
        for left in rows.clone().step_by(TILE) {
            let right = (left + TILE).min(rows.end);
            for line in top..(top + TILE).min(height) {
                let words = &stored[line * width + left..line * width + right];
                for (word, row) in words.iter().zip(left - rows.start..) {
                    out[row * height + line] = *word;
                }
            }
        }
    }
    Some(())
}

/// Code `index` of a stream.
fn code(stream: &[u8], index: usize, bits: usize) -> Option<u8> {
    let (first, shift) = (index * bits / 8, index * bits % 8);
    let low = u16::from(*stream.get(first)?);
    let high = u16::from(stream.get(first + 1).copied().unwrap_or_default());
    // The mask leaves 8 bits at most.
    Some(((low | high << 8) >> shift & ((1 << bits) - 1)) as u8)
}

/// Writes the zero of each group; `groups` groups of the packing share a stored one.
pub(super) fn write_zeros(
    groups: usize,
    rows: Range<usize>,
    out: &mut [u8],
    zero_of: impl Fn(usize, usize) -> Option<u8>,
) -> Option<()> {
    let count = out.len().checked_div(rows.len())?;
    for (row, zeros) in rows.zip(out.chunks_exact_mut(count.max(1))) {
        for (group, of_group) in zeros.chunks_mut(groups.max(1)).enumerate() {
            of_group.fill(zero_of(group, row)?);
        }
    }
    Some(())
}

/// Writes the order of columns that sorts them by group.
pub(super) fn write_order(groups: &[u8], out: &mut [u8]) -> Option<()> {
    let out = out.as_chunks_mut::<4>().0;
    let order = stream::order(groups);
    if out.len() != order.len() {
        return None;
    }
    for (place, column) in out.iter_mut().zip(order) {
        *place = i32::try_from(column).ok()?.to_le_bytes();
    }
    Some(())
}
