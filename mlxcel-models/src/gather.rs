//! Gathers the bytes of a weight from the tensors that it consists of.

use std::borrow::Cow;
use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::{Selection, WeightRef};
use crate::element::ElementType;
use crate::packing::Derived;

/// A weight's type, shape and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightView<'a> {
    /// The type of the elements.
    pub element_type: ElementType,
    /// The sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major, little-endian and unaligned; borrowed from the mapped file if they are contiguous
    /// there.
    pub bytes: Cow<'a, [u8]>,
}

/// The weight's bytes in `checkpoint`.
pub(crate) fn view<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<WeightView<'a>> {
    if let Some(derived) = &weight.derived {
        let mut bytes = zeros(weight.byte_len())?;
        derived_rows(checkpoint, weight, derived, 0..row_count(weight), &mut bytes)?;
        return Ok(WeightView {
            element_type: weight.element,
            shape: weight.stored_shape(),
            bytes: bytes.into(),
        });
    }
    let (first, location) = checkpoint.located(&weight.tensor)?;
    let differs = || differs(weight, &first, location);
    let shape = weight.stored_shape();
    let bits = first.element_type.bits();
    if weight.element != first.element_type || !bits.is_multiple_of(8) {
        return Err(differs());
    }
    let (bytes, sizes) = stacked(checkpoint, weight, &first, &differs)?;
    let (bytes, sizes) = match sizes[..] {
        _ if !weight.transposed => (bytes, sizes),
        [.., rows, columns] => {
            let bytes = transposed(&bytes, rows, columns, bits / 8)?;
            let mut sizes = sizes;
            let rank = sizes.len();
            sizes.swap(rank - 2, rank - 1);
            (Cow::Owned(bytes), sizes)
        }
        _ => return Err(differs()),
    };
    let bytes = match &weight.selection {
        None => bytes,
        Some(selection) => selected(bytes, &sizes, selection, bits / 8)?.ok_or_else(differs)?,
    };
    if Some(bytes.len()) != shape.iter().try_fold(bits / 8, |bytes, &size| bytes.checked_mul(size)) {
        return Err(differs());
    }
    // A whole tensor is read in its own shape, or in one that differs by dimensions of size one or by a regrouping that the
    // family asked for.
    Ok(WeightView { element_type: first.element_type, shape, bytes })
}

/// Writes consecutive rows of `weight`, all leading dimensions counted, into `out`, which is as long as they are.
pub(crate) fn rows(
    checkpoint: &Checkpoint,
    weight: &WeightRef,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let count = row_count(weight);
    let row = weight.byte_len().checked_div(count).unwrap_or_default();
    if rows.start > rows.end || rows.end > count || out.len() != rows.len() * row {
        let message = format!("{weight} has no rows {rows:?} of {} bytes", out.len());
        return Err(Error::new(ErrorKind::InvalidInput, "read weight", message));
    }
    match &weight.derived {
        Some(derived) => derived_rows(checkpoint, weight, derived, rows, out),
        None => stored_rows(checkpoint, weight, rows, out),
    }
}

/// The rows of a weight: all dimensions but the innermost.
fn row_count(weight: &WeightRef) -> usize {
    weight.shape.iter().rev().skip(1).product()
}

/// Rows of a weight that is read out of tensors of another arrangement, those of one tensor that follow each other at once.
fn derived_rows(
    checkpoint: &Checkpoint,
    weight: &WeightRef,
    derived: &Derived,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let (first, location) = checkpoint.located(&weight.tensor)?;
    let differs = || differs(weight, &first, location);
    let (_, leading) = derived.shape.split_last().ok_or_else(differs)?;
    if weight.transposed || derived.rows() == 0 {
        return Err(differs());
    }
    picked_rows(weight, leading, rows, out, &differs, |tensor, rows, target| {
        derived.read(checkpoint, tensor, rows, target)
    })
}

/// Rows of a weight whose tensors hold its elements as they are, without looking at others.
fn stored_rows(
    checkpoint: &Checkpoint,
    weight: &WeightRef,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let (first, location) = checkpoint.located(&weight.tensor)?;
    let differs = || differs(weight, &first, location);
    let bytes = first.element_type.bits() / 8;
    let mut sizes = first.shape.clone();
    let rank = sizes.len();
    if weight.transposed && rank >= 2 {
        sizes.swap(rank - 2, rank - 1);
    }
    let stacked = usize::from(!weight.stack.is_empty());
    let within_rows = weight.selection.is_some_and(|selection| selection.axis + 1 >= rank + stacked);
    let (Some((&columns, leading)), Some(&width)) = (sizes.split_last(), weight.stored_shape().last()) else {
        return Err(differs());
    };
    if within_rows || columns != width {
        // Rows are made of pieces of those that are stored: such weights are small.
        let row = out.len().checked_div(rows.len()).unwrap_or_default();
        let view = view(checkpoint, weight)?;
        let found = view.bytes.get(rows.start * row..rows.end * row).ok_or_else(differs)?;
        out.copy_from_slice(found);
        return Ok(());
    }
    if weight.element != first.element_type || first.element_type.bits() % 8 != 0 {
        return Err(differs());
    }
    let row = columns * bytes;
    let in_matrix = leading.last().copied().unwrap_or(1).max(1);
    picked_rows(weight, leading, rows, out, &differs, |tensor, rows, target| {
        let (view, _) = checkpoint.located(tensor)?;
        if view.shape != first.shape || view.element_type != first.element_type {
            return Err(differs().with_context("other", tensor));
        }
        if !weight.transposed {
            let found = view.bytes.get(rows.start * row..rows.end * row).ok_or_else(differs)?;
            target.copy_from_slice(found);
            return Ok(());
        }
        // A row is a column of what is stored; neighbours lie together.
        for (index, target) in rows.zip(target.chunks_exact_mut(row.max(1))) {
            let (matrix, column) = (index / in_matrix, index % in_matrix);
            let stored = view.bytes.get(matrix * in_matrix * row..).unwrap_or_default();
            let elements = stored.chunks_exact(in_matrix * bytes);
            for (out, stored) in target.chunks_exact_mut(bytes).zip(elements) {
                out.copy_from_slice(&stored[column * bytes..(column + 1) * bytes]);
            }
        }
        Ok(())
    })
}

/// Has `read` write rows of `weight` out of its tensors, whose dimensions before the innermost are `leading`: those of one tensor
/// that follow each other at once.
fn picked_rows(
    weight: &WeightRef,
    leading: &[usize],
    rows: Range<usize>,
    out: &mut [u8],
    differs: &dyn Fn() -> Error,
    mut read: impl FnMut(&str, Range<usize>, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let per_tensor: usize = leading.iter().product();
    // What a selection picks from: one dimension more for the stack.
    let mut sizes = leading.to_vec();
    if !weight.stack.is_empty() {
        sizes.insert(0, weight.stack.len() + 1);
    }
    let picked = |row: usize| match &weight.selection {
        None => Some(row),
        Some(selection) => {
            let &size = sizes.get(selection.axis)?;
            let inner: usize = sizes[selection.axis + 1..].iter().product();
            let (outer, within) = (row / (selection.count() * inner), row % (selection.count() * inner));
            let (index, rest) = (within / inner, within % inner);
            let at = selection.start + index / selection.run * selection.stride + index % selection.run;
            (at < size).then_some((outer * size + at) * inner + rest)
        }
    };
    let sound = weight.selection.is_none_or(|selection| selection.run > 0 && selection.count() > 0);
    if per_tensor == 0 || !sound {
        return Err(differs());
    }
    let row_bytes = out.len().checked_div(rows.len()).unwrap_or_default();
    let mut rest = out;
    let mut next = rows.start;
    while next < rows.end {
        let source = picked(next).ok_or_else(differs)?;
        let until_tensor_ends = per_tensor - source % per_tensor;
        let consecutive = (1..(rows.end - next).min(until_tensor_ends))
            .take_while(|&step| picked(next + step) == Some(source + step))
            .count();
        let run = consecutive + 1;
        let index = source / per_tensor;
        let tensor = match index.checked_sub(1) {
            None => &weight.tensor,
            Some(index) => weight.stack.get(index).ok_or_else(differs)?,
        };
        let (target, behind) = rest.split_at_mut(run * row_bytes);
        let begin = source % per_tensor;
        read(tensor, begin..begin + run, target)?;
        rest = behind;
        next += run;
    }
    Ok(())
}

/// The bytes of `weight` in the mapped files, one part for each of the tensors that it is stacked of; none where they are not
/// together in those.
pub(crate) fn mapped<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<Option<Vec<&'a [u8]>>> {
    if weight.is_contiguous() {
        return Ok(match view(checkpoint, weight)?.bytes {
            Cow::Borrowed(bytes) => Some(vec![bytes]),
            Cow::Owned(_) => None,
        });
    }
    let composed = weight.derived.is_some() || weight.transposed || weight.selection.is_some();
    if weight.stack.is_empty() || composed {
        return Ok(None);
    }
    let (first, location) = checkpoint.located(&weight.tensor)?;
    let mut parts = vec![first.bytes];
    for name in &weight.stack {
        let (other, _) = checkpoint.located(name)?;
        parts.push(other.bytes);
        if other.shape != first.shape || other.element_type != first.element_type {
            return Err(differs(weight, &first, location).with_context("other", name));
        }
    }
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
    if weight.element != first.element_type || bytes != weight.byte_len() {
        return Err(differs(weight, &first, location));
    }
    Ok(Some(parts))
}

/// That a reference is none to this checkpoint's tensor.
fn differs(weight: &WeightRef, first: &TensorView<'_>, location: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "read weight",
        format!("the reference to {weight} does not fit the tensor {} {:?}", first.element_type, first.shape),
    )
    .with_context("tensor", &weight.tensor)
    .with_context("path", location)
}

/// All tensors of the weight, consecutively, and their common shape.
fn stacked<'a>(
    checkpoint: &'a Checkpoint,
    weight: &WeightRef,
    first: &TensorView<'a>,
    differs: &dyn Fn() -> Error,
) -> Result<(Cow<'a, [u8]>, Vec<usize>)> {
    if weight.stack.is_empty() {
        return Ok((Cow::Borrowed(first.bytes), first.shape.clone()));
    }
    let mut bytes = room(first.bytes.len().saturating_mul(weight.stack.len() + 1))?;
    bytes.extend_from_slice(first.bytes);
    for name in &weight.stack {
        let (other, _) = checkpoint.located(name)?;
        if other.shape != first.shape || other.element_type != first.element_type {
            return Err(differs().with_context("other", name));
        }
        bytes.extend_from_slice(other.bytes);
    }
    let mut sizes = first.shape.clone();
    sizes.insert(0, weight.stack.len() + 1);
    Ok((Cow::Owned(bytes), sizes))
}

/// Zeros for `bytes` of a weight.
fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut zeros = room(bytes)?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

/// A vector for `bytes` of a weight.
fn room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| Error::out_of_memory("read weight", bytes))?;
    Ok(room)
}

/// Matrices of `rows` by `columns` elements, consecutively, with rows and columns swapped.
fn transposed(bytes: &[u8], rows: usize, columns: usize, width: usize) -> Result<Vec<u8>> {
    let mut out = room(bytes.len())?;
    let matrix = rows * columns * width;
    for matrix in bytes.chunks_exact(matrix.max(1)) {
        for column in 0..columns {
            for row in matrix.chunks_exact(columns * width) {
                out.extend_from_slice(&row[column * width..(column + 1) * width]);
            }
        }
    }
    Ok(out)
}

/// The selected part; `None` where it is not within the sizes.
fn selected<'a>(
    bytes: Cow<'a, [u8]>,
    sizes: &[usize],
    selection: &Selection,
    width: usize,
) -> Result<Option<Cow<'a, [u8]>>> {
    let Selection { axis, start, run, stride, runs } = *selection;
    let Some(&size) = sizes.get(axis) else { return Ok(None) };
    if run == 0 || runs == 0 || stride < run || selection.end() > size {
        return Ok(None);
    }
    // Rows of types narrower than a byte were refused, so a row is whole bytes.
    let inner = sizes[axis + 1..].iter().product::<usize>() * width;
    if axis == 0 && selection.is_contiguous() {
        let range = start * inner..(start + selection.count()) * inner;
        return Ok(match bytes {
            Cow::Borrowed(bytes) => bytes.get(range).map(Cow::Borrowed),
            Cow::Owned(mut bytes) if range.end <= bytes.len() => {
                bytes.truncate(range.end);
                bytes.drain(..range.start);
                Some(Cow::Owned(bytes))
            }
            Cow::Owned(_) => None,
        });
    }
    let mut out = room(bytes.len() / size * selection.count())?;
    for outer in bytes.chunks_exact((size * inner).max(1)) {
        for at in (0..runs).map(|index| start + index * stride) {
            let Some(part) = outer.get(at * inner..(at + run) * inner) else { return Ok(None) };
            out.extend_from_slice(part);
        }
    }
    Ok(Some(Cow::Owned(out)))
}
