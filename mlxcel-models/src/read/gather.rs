//! Reads the elements of a weight from the tensors that it consists of.

use std::borrow::Cow;
use std::ops::Range;

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
    /// The elements, row-major, little-endian and unaligned; borrowed from the mapped file if they are
    /// contiguous there.
    pub bytes: Cow<'a, [u8]>,
}

/// The weight's bytes in `checkpoint`.
pub(super) fn view<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<WeightView<'a>> {
    let bytes = match contiguous(checkpoint, weight)? {
        Some(bytes) => bytes.into(),
        None => {
            let mut bytes = zeros(weight.byte_len())?;
            rows(checkpoint, weight, 0..row_count(weight), &mut bytes)?;
            bytes.into()
        }
    };
    Ok(WeightView { element_type: weight.element, shape: weight.stored_shape(), bytes })
}

/// The bytes of `weight` in the mapped files, one part for each of the tensors that it is stacked of; none
/// where they are not together in those.
pub(super) fn mapped<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<Option<Vec<&'a [u8]>>> {
    if let Some(bytes) = contiguous(checkpoint, weight)? {
        return Ok(Some(vec![bytes]));
    }
    if !weight.joined.is_empty() {
        return joined(checkpoint, weight).map(Some);
    }
    if weight.stack.is_empty() || weight.derived.is_some() || weight.transposed || weight.selection.is_some()
    {
        return Ok(None);
    }
    let tensors = Tensors::of(checkpoint, weight)?;
    let parts = (0..=weight.stack.len()).map(|index| tensors.view(index).map(|view| view.bytes));
    parts.collect::<Result<_>>().map(Some)
}

/// The bytes of a weight that is one piece of one tensor; none of any other.
fn contiguous<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<Option<&'a [u8]>> {
    if !weight.is_contiguous() {
        return Ok(None);
    }
    let tensors = Tensors::of(checkpoint, weight)?;
    let start = weight.selection.map_or(0, |selection| selection.start * tensors.inner(selection.axis));
    let bytes =
        start.checked_mul(tensors.bytes).and_then(|start| Some(start..start.checked_add(weight.byte_len())?));
    let found = bytes.and_then(|bytes| tensors.first.bytes.get(bytes));
    found.map(Some).ok_or_else(|| tensors.differs())
}

/// Writes consecutive rows of `weight`, all leading dimensions counted, into `out`, which is as long as they
/// are.
pub(super) fn rows(
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
    if !weight.joined.is_empty() {
        let parts = joined(checkpoint, weight)?;
        copy(&parts, rows.start * row, out);
        return Ok(());
    }
    let Some(derived) = &weight.derived else {
        let tensors = Tensors::of(checkpoint, weight)?;
        // Rows need not be those of the tensors: a selection may be within them, and a shape may regroup
        // them.
        let width = row / tensors.bytes;
        return tensors.elements(rows.start * width..rows.end * width, out);
    };
    let (first, location) = checkpoint.located(&weight.tensor)?;
    let differs = || differs(weight, &first, location);
    let (_, leading) = derived.shape.split_last().ok_or_else(differs)?;
    if weight.transposed {
        return Err(differs());
    }
    let pieces = Pieces::new(leading.to_vec(), weight, None).ok_or_else(differs)?;
    let mut rest = out;
    for piece in pieces.of(rows) {
        let (tensor, rows) = piece.ok_or_else(differs)?;
        let (target, behind) = rest.split_at_mut(rows.len() * row);
        derived.read(checkpoint, name(weight, tensor).ok_or_else(differs)?, rows, target)?;
        rest = behind;
    }
    Ok(())
}

/// The bytes of each tensor of a weight whose rows are those of several tensors.
fn joined<'a>(checkpoint: &'a Checkpoint, weight: &WeightRef) -> Result<Vec<&'a [u8]>> {
    let (first, location) = checkpoint.located(&weight.tensor)?;
    let differs = || differs(weight, &first, location);
    let is_whole = weight.derived.is_none() && weight.selection.is_none() && weight.packed.is_none();
    if !is_whole || weight.transposed || !weight.stack.is_empty() {
        return Err(differs());
    }
    let view = |name: &str| {
        let (view, _) = checkpoint.located(name)?;
        let is_like = view.element_type == weight.element && view.shape.len() == first.shape.len();
        if is_like { Ok(view.bytes) } else { Err(differs().with_context("other", name)) }
    };
    let parts = weight.names().map(view).collect::<Result<Vec<_>>>()?;
    let bytes = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
    if bytes == Some(weight.byte_len()) { Ok(parts) } else { Err(differs()) }
}

/// Writes what lies from `start` on in consecutive `parts` into `out`.
fn copy(parts: &[&[u8]], mut start: usize, mut out: &mut [u8]) {
    for part in parts {
        let found = part.get(start..).unwrap_or_default();
        start = start.saturating_sub(part.len());
        let count = found.len().min(out.len());
        let (target, rest) = out.split_at_mut(count);
        target.copy_from_slice(&found[..count]);
        out = rest;
    }
}

/// The rows of a weight: all dimensions but the innermost.
fn row_count(weight: &WeightRef) -> usize {
    weight.shape.iter().rev().skip(1).product()
}

/// The name of the first tensor of a weight, or of one that is stacked on it.
fn name(weight: &WeightRef, index: usize) -> Option<&str> {
    match index.checked_sub(1) {
        None => Some(&weight.tensor),
        Some(index) => weight.stack.get(index).map(String::as_str),
    }
}

/// The tensors of a weight that hold its elements as they are.
struct Tensors<'a, 'w> {
    checkpoint: &'a Checkpoint,
    weight: &'w WeightRef,
    first: TensorView<'a>,
    location: &'a str,
    /// The sizes of a tensor as the weight uses it: the last two swapped where it is transposed.
    sizes: Vec<usize>,
    /// Bytes of an element.
    bytes: usize,
}

impl<'a, 'w> Tensors<'a, 'w> {
    /// The tensors of a weight that is not derived.
    fn of(checkpoint: &'a Checkpoint, weight: &'w WeightRef) -> Result<Self> {
        let (first, location) = checkpoint.located(&weight.tensor)?;
        let mut sizes = first.shape.clone();
        let rank = sizes.len();
        let bits = first.element_type.bits();
        if weight.element != first.element_type || !bits.is_multiple_of(8) || weight.transposed && rank < 2 {
            return Err(differs(weight, &first, location));
        }
        if weight.transposed {
            let is_whole = weight.selection.is_none() && weight.stack.is_empty();
            match is_whole && weight.shape.len() == rank + 1 {
                // Several matrices, which the tensor has below each other.
                true => sizes.clone_from(&weight.shape),
                false => sizes.swap(rank - 2, rank - 1),
            }
        }
        let tensors = Self { checkpoint, weight, first, location, sizes, bytes: bits / 8 };
        if tensors.selected() != Some(weight.byte_len() / tensors.bytes) {
            return Err(tensors.differs());
        }
        Ok(tensors)
    }

    /// The number of elements that the weight has of its tensors; none where its selection is not within
    /// them.
    fn selected(&self) -> Option<usize> {
        let sizes = stacked(self.sizes.clone(), self.weight);
        let elements = sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))?;
        let Some(selection) = &self.weight.selection else { return Some(elements) };
        let &size = sizes.get(selection.axis)?;
        let Selection { run, stride, runs, .. } = *selection;
        let sound = run > 0 && runs > 0 && stride >= run && selection.end() <= size;
        sound.then(|| elements / size * selection.count())
    }

    /// How many elements an index of the dimension `axis` of one tensor has.
    fn inner(&self, axis: usize) -> usize {
        self.sizes.iter().skip(axis + 1).product()
    }

    fn differs(&self) -> Error {
        differs(self.weight, &self.first, self.location)
    }

    /// The first tensor, or one that is stacked on it, which must be like the first.
    fn view(&self, index: usize) -> Result<TensorView<'a>> {
        let name = name(self.weight, index).ok_or_else(|| self.differs())?;
        let (view, _) = self.checkpoint.located(name)?;
        if view.shape != self.first.shape || view.element_type != self.first.element_type {
            return Err(self.differs().with_context("other", name));
        }
        Ok(view)
    }

    /// Writes consecutive elements of the weight into `out`, which is as long as they are.
    fn elements(&self, elements: Range<usize>, out: &mut [u8]) -> Result<()> {
        let differs = || self.differs();
        // A run of a transposed tensor is within a row, which is a column of what is stored.
        let together = self.sizes.last().copied().filter(|_| self.weight.transposed);
        let pieces = Pieces::new(self.sizes.clone(), self.weight, together).ok_or_else(differs)?;
        let mut rest = out;
        let mut read = None;
        for piece in pieces.of(elements) {
            let (tensor, piece) = piece.ok_or_else(differs)?;
            let view = match read.take() {
                Some((index, view)) if index == tensor => view,
                _ => self.view(tensor)?,
            };
            let (target, behind) = rest.split_at_mut(piece.len() * self.bytes);
            if self.weight.transposed {
                self.column(&view, piece, target).ok_or_else(differs)?;
            } else {
                let found = view.bytes.get(piece.start * self.bytes..piece.end * self.bytes);
                target.copy_from_slice(found.ok_or_else(differs)?);
            }
            read = Some((tensor, view));
            rest = behind;
        }
        Ok(())
    }

    /// Writes elements of one row of a transposed tensor.
    fn column(&self, view: &TensorView<'_>, piece: Range<usize>, target: &mut [u8]) -> Option<()> {
        let [.., rows, columns] = self.sizes[..] else { return None };
        let (row, first) = (piece.start / columns, piece.start % columns);
        let (matrix, row) = (row / rows, row % rows);
        let stored = view.bytes.get((matrix * columns + first) * rows * self.bytes..)?;
        for (out, line) in target.chunks_exact_mut(self.bytes).zip(stored.chunks_exact(rows * self.bytes)) {
            out.copy_from_slice(&line[row * self.bytes..(row + 1) * self.bytes]);
        }
        Some(())
    }
}

/// `sizes` of one tensor with a dimension in front for those that are stacked on it.
fn stacked(mut sizes: Vec<usize>, weight: &WeightRef) -> Vec<usize> {
    if !weight.stack.is_empty() {
        sizes.insert(0, weight.stack.len() + 1);
    }
    sizes
}

/// Where a weight's consecutive items (elements or rows) lie in its tensors.
struct Pieces {
    /// Items of one tensor.
    per_tensor: usize,
    /// Pieces do not cross multiples of this.
    together: Option<usize>,
    /// Of a selection: itself, the size of its dimension, and the items of one index.
    selection: Option<(Selection, usize, usize)>,
}

impl Pieces {
    /// The items of tensors of these `sizes`, of which pieces do not cross multiples of `together`; none
    /// where there are no items.
    fn new(sizes: Vec<usize>, weight: &WeightRef, together: Option<usize>) -> Option<Self> {
        let per_tensor: usize = sizes.iter().product();
        let sizes = stacked(sizes, weight);
        let selection = match weight.selection {
            None => None,
            Some(selection) => {
                let &size = sizes.get(selection.axis)?;
                let inner = sizes[selection.axis + 1..].iter().product();
                if selection.run == 0 || selection.count() == 0 || inner == 0 {
                    return None;
                }
                Some((selection, size, inner))
            }
        };
        (per_tensor > 0).then_some(Self { per_tensor, together, selection })
    }

    /// Where item `item` of the weight lies among those of all tensors, and how many that follow it lie
    /// behind it.
    fn find(&self, item: usize) -> Option<(usize, usize)> {
        let Some((selection, size, inner)) = self.selection else { return Some((item, usize::MAX)) };
        let all = selection.count() * inner;
        let (outer, within) = (item / all, item % all);
        let (index, rest) = (within / inner, within % inner);
        let at = selection.start + index / selection.run * selection.stride + index % selection.run;
        let left = (selection.run - index % selection.run) * inner - rest;
        (at < size).then_some(((outer * size + at) * inner + rest, left))
    }

    /// Each piece of `items` as the index of a tensor and items of that; none for one outside of the tensors.
    fn of(&self, items: Range<usize>) -> impl Iterator<Item = Option<(usize, Range<usize>)>> {
        let mut next = items.start;
        std::iter::from_fn(move || {
            if next >= items.end {
                return None;
            }
            let Some((at, left)) = self.find(next) else {
                next = items.end;
                return Some(None);
            };
            let (tensor, begin) = (at / self.per_tensor, at % self.per_tensor);
            let mut count = left.min(items.end - next).min(self.per_tensor - begin);
            if let Some(together) = self.together {
                count = count.min(together - begin % together);
            }
            next += count;
            Some(Some((tensor, begin..begin + count)))
        })
    }
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

/// That a reference is none to the stored tensor called `tensor`.
pub(super) fn misfit(tensor: &str, location: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read weight", "the reference does not fit the stored tensor")
        .with_context("tensor", tensor)
        .with_context("path", location)
}

/// Zeros for `bytes` of a weight.
fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(bytes).map_err(|_| Error::out_of_memory("read weight", bytes))?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}
