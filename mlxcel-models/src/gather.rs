//! The bytes of a weight, gathered from the tensors that it is made of.

use std::borrow::Cow;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::{Selection, WeightRef};
use crate::element::ElementType;

/// A weight's type, shape and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightView<'a> {
    /// The type of the elements.
    pub element_type: ElementType,
    /// The sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major and little-endian, at no particular alignment. Borrowed from the mapped file where they lie
    /// together in it.
    pub bytes: Cow<'a, [u8]>,
}

/// The weight's bytes in `checkpoint`.
pub(crate) fn view<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<WeightView<'a>> {
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

/// The bytes of `weight` in the mapped files, one part for each of the tensors that it is stacked of; none where they are not
/// together in those.
pub(crate) fn mapped<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<Option<Vec<&'a [u8]>>> {
    if weight.is_contiguous() {
        return Ok(match view(checkpoint, weight)?.bytes {
            Cow::Borrowed(bytes) => Some(vec![bytes]),
            Cow::Owned(_) => None,
        });
    }
    if weight.stack.is_empty() || weight.transposed || weight.selection.is_some() {
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

/// All tensors of the weight, one behind the other, and their common shape.
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

/// A vector for `bytes` of a weight.
fn room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| Error::out_of_memory("read weight", bytes))?;
    Ok(room)
}

/// Matrices of `rows` by `columns` elements, one behind the other, with rows and columns swapped.
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
