//! Strided views: how elements of a result lie in the tensor that they are read from.

/// Maps each index of a tensor of `shape` to an element number: `offset + Σ index[i] · strides[i]`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) offset: usize,
}

/// An operation that only chooses and orders elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum ViewOp<'a> {
    /// Operand dimension `i` becomes dimension `dimensions[i]` of `shape`.
    Broadcast { dimensions: &'a [usize], shape: &'a [usize] },
    /// Dimension `i` is operand dimension `permutation[i]`.
    Transpose { permutation: &'a [usize] },
    /// Every `stride`-th index from `start` up to `limit`.
    Slice { start: &'a [usize], limit: &'a [usize], stride: &'a [usize] },
}

/// The row-major strides of a dense tensor, in elements.
pub(super) fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// The dimensions of a tensor of this rank without some of them.
pub(super) fn without(rank: usize, dimensions: &[usize]) -> Vec<usize> {
    (0..rank).filter(|i| !dimensions.contains(i)).collect()
}

impl View {
    /// The elements of a dense tensor in their order.
    pub(super) fn dense(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), strides: dense_strides(shape), offset: 0 }
    }

    /// Some dimensions of a dense tensor, in this order.
    pub(super) fn dimensions(shape: &[usize], dimensions: &[usize]) -> Self {
        let strides = dense_strides(shape);
        let of = |all: &[usize]| dimensions.iter().map(|&i| all[i]).collect();
        Self { shape: of(shape), strides: of(&strides), offset: 0 }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements are those of a dense tensor from its first on, in their order.
    pub(super) fn is_dense(&self) -> bool {
        let linear = self.linear();
        linear.offset == 0 && linear.is_contiguous()
    }

    /// The view that `op` makes of this one.
    pub(super) fn apply(&self, op: ViewOp<'_>) -> Self {
        match op {
            ViewOp::Broadcast { dimensions, shape } => {
                let mut strides = vec![0; shape.len()];
                for (from, &to) in dimensions.iter().enumerate() {
                    strides[to] = if self.shape[from] == 1 { 0 } else { self.strides[from] };
                }
                Self { shape: shape.to_vec(), strides, offset: self.offset }
            }
            ViewOp::Transpose { permutation } => Self {
                shape: permutation.iter().map(|&from| self.shape[from]).collect(),
                strides: permutation.iter().map(|&from| self.strides[from]).collect(),
                offset: self.offset,
            },
            ViewOp::Slice { start, limit, stride } => Self {
                shape: (0..self.shape.len())
                    .map(|i| limit[i].saturating_sub(start[i]).div_ceil(stride[i]))
                    .collect(),
                strides: self.strides.iter().zip(stride).map(|(own, by)| own * by).collect(),
                offset: self.offset + start.iter().zip(&self.strides).map(|(at, by)| at * by).sum::<usize>(),
            },
        }
    }

    /// The same elements in the same order under another shape, where strides can say it.
    pub(super) fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if shape.iter().product::<usize>() == 0 {
            return Some(Self::dense(shape));
        }
        let linear = self.linear();
        // Splits the coalesced dimensions, innermost first, into the new ones.
        let mut strides = vec![0; shape.len()];
        let mut old = linear.dims.iter().rev();
        let (mut left, mut stride) = (1, 0);
        for (i, &size) in shape.iter().enumerate().rev() {
            if size == 1 {
                continue;
            }
            if left == 1 {
                (left, stride) = *old.next()?;
            }
            if left % size != 0 {
                return None;
            }
            strides[i] = stride;
            stride *= size;
            left /= size;
        }
        Some(Self { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// How the view walks through memory in row-major order of its shape.
    pub(super) fn linear(&self) -> Linear {
        let mut dims: Vec<(usize, usize)> = Vec::with_capacity(self.shape.len());
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((outer, outer_stride)) if *outer_stride == stride * size => {
                    *outer *= size;
                    *outer_stride = stride;
                }
                _ => dims.push((size, stride)),
            }
        }
        Linear { offset: self.offset, dims }
    }
}

/// A view as a function of the row-major number of an element: neighbouring dimensions that one stride
/// describes are joined, dimensions of size one left out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Linear {
    pub(super) offset: usize,
    /// Size and stride of each dimension, outermost first.
    pub(super) dims: Vec<(usize, usize)>,
}

impl Linear {
    /// Whether consecutive elements are neighbours in memory.
    pub(super) fn is_contiguous(&self) -> bool {
        match self.dims.as_slice() {
            [] => true,
            [(_, stride)] => *stride == 1,
            _ => false,
        }
    }

    /// Whether all elements are the same one.
    pub(super) fn is_uniform(&self) -> bool {
        self.dims.iter().all(|&(_, stride)| stride == 0)
    }

    /// The element number of the `index`-th element.
    pub(super) fn at(&self, mut index: usize) -> usize {
        let mut at = self.offset;
        for &(size, stride) in self.dims.iter().rev() {
            at += index % size * stride;
            index /= size;
        }
        at
    }

    /// Calls `run(position, first, stride, length)` for each stretch of the elements `start .. start + count`
    /// that one stride describes; `position` counts from `start`.
    #[inline]
    pub(super) fn runs(&self, start: usize, count: usize, mut run: impl FnMut(usize, usize, usize, usize)) {
        if count == 0 {
            return;
        }
        let Some((&(size, stride), outer)) = self.dims.split_last() else {
            // A single element: a longer count never arises, but would repeat it.
            run(0, self.offset, 0, count);
            return;
        };
        if outer.is_empty() {
            run(0, self.offset + start * stride, stride, count);
            return;
        }
        let (mut row, mut column) = (start / size, start % size);
        let mut position = 0;
        while position < count {
            let length = (size - column).min(count - position);
            let mut at = self.offset;
            let mut index = row;
            for &(size, stride) in outer.iter().rev() {
                at += index % size * stride;
                index /= size;
            }
            run(position, at + column * stride, stride, length);
            position += length;
            row += 1;
            column = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(view: &View) -> Vec<usize> {
        let linear = view.linear();
        let mut walked = vec![usize::MAX; view.elements()];
        for (start, count) in
            [(0, view.elements() / 3), (view.elements() / 3, view.elements() - view.elements() / 3)]
        {
            linear.runs(start, count, |position, first, stride, length| {
                for i in 0..length {
                    walked[start + position + i] = first + i * stride;
                }
            });
        }
        for (i, &at) in walked.iter().enumerate() {
            assert_eq!(at, linear.at(i), "runs and at() must agree at {i}");
        }
        walked
    }

    #[test]
    fn transposed_elements_are_walked_in_result_order() {
        let view = View::dense(&[2, 3]).apply(ViewOp::Transpose { permutation: &[1, 0] });
        assert_eq!(view.shape, [3, 2]);
        assert_eq!(elements(&view), [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn sliced_elements_start_at_the_offset_and_step() {
        let view =
            View::dense(&[3, 5]).apply(ViewOp::Slice { start: &[1, 0], limit: &[3, 5], stride: &[1, 2] });
        assert_eq!(view.shape, [2, 3]);
        assert_eq!(elements(&view), [5, 7, 9, 10, 12, 14]);
    }

    #[test]
    fn broadcast_elements_repeat() {
        let view = View::dense(&[2]).apply(ViewOp::Broadcast { dimensions: &[0], shape: &[2, 3] });
        assert_eq!(elements(&view), [0, 0, 0, 1, 1, 1]);
        let view = View::dense(&[2, 1]).apply(ViewOp::Broadcast { dimensions: &[0, 1], shape: &[2, 2] });
        assert_eq!(elements(&view), [0, 0, 1, 1]);
    }

    #[test]
    fn reshape_splits_and_joins_where_strides_allow() {
        let dense = View::dense(&[4, 6]);
        assert!(dense.reshape(&[2, 2, 3, 2]).unwrap().is_dense());
        let columns = dense.apply(ViewOp::Slice { start: &[0, 2], limit: &[4, 6], stride: &[1, 1] });
        assert_eq!(elements(&columns.reshape(&[2, 2, 2, 2]).unwrap()), elements(&columns));
        assert_eq!(columns.reshape(&[16]), None);
        let transposed = dense.apply(ViewOp::Transpose { permutation: &[1, 0] });
        assert_eq!(transposed.reshape(&[24]), None);
        assert_eq!(elements(&transposed.reshape(&[3, 2, 4]).unwrap()), elements(&transposed));
        let repeated = View::dense(&[1]).apply(ViewOp::Broadcast { dimensions: &[0], shape: &[6] });
        assert_eq!(elements(&repeated.reshape(&[2, 3]).unwrap()), [0; 6]);
    }
}
