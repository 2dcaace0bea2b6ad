//! Parts of arrays: read and replaced.

use mlxcel_core::Result;

use super::{Array, sizes};
use crate::ffi::sys;

impl Array {
    /// The elements from `start[i]` up to `stop[i]` (exclusive) along each axis `i`.
    pub(crate) fn slice(&self, start: &[usize], stop: &[usize]) -> Result<Self> {
        self.slice_by(start, stop, &vec![1; start.len()])
    }

    /// Every `strides[i]`-th element from `start[i]` up to `stop[i]` (exclusive) along each axis `i`.
    pub(crate) fn slice_by(&self, start: &[usize], stop: &[usize], strides: &[usize]) -> Result<Self> {
        const OPERATION: &str = "slice";
        let (start, stop) = (sizes(start, OPERATION)?, sizes(stop, OPERATION)?);
        Self::made(sys::slice(self.tensor(), &start, &stop, &sizes(strides, OPERATION)?), OPERATION)
    }

    /// The elements from `start` up to `stop` (exclusive) along one axis, and all along the others.
    pub(crate) fn slice_axis(&self, axis: i32, start: usize, stop: usize) -> Result<Self> {
        let shape = self.shape();
        let mut from = vec![0; shape.len()];
        let mut to = shape;
        let at = if axis < 0 { axis + from.len() as i32 } else { axis };
        if let Some(at) = usize::try_from(at).ok().filter(|at| *at < from.len()) {
            (from[at], to[at]) = (start, stop);
            return self.slice(&from, &to);
        }
        Err(super::no_axis("slice", axis, from.len()))
    }

    /// This array with [`slice`](Self::slice) replaced by `update`, in place if there is no other handle on
    /// this array.
    pub(crate) fn slice_update(&self, update: &Self, start: &[usize], stop: &[usize]) -> Result<Self> {
        const OPERATION: &str = "update a slice";
        let (start, stop) = (sizes(start, OPERATION)?, sizes(stop, OPERATION)?);
        let strides = vec![1; start.len()];
        Self::made(sys::slice_update(self.tensor(), update.tensor(), &start, &stop, &strides), OPERATION)
    }

    /// The elements at `indices` along an axis, which becomes the axes of `indices`. For axis 0 of a matrix:
    /// its rows.
    ///
    /// Indices are not checked against the size of the axis; if they exceed it, the result is unspecified.
    pub(crate) fn take(&self, indices: &Self, axis: i32) -> Result<Self> {
        Self::made(sys::take(self.tensor(), indices.tensor(), axis), "take")
    }

    /// Along an axis, the elements of each line at that line's `indices`, which have the same rank.
    pub(crate) fn take_along_axis(&self, indices: &Self, axis: i32) -> Result<Self> {
        Self::made(sys::take_along_axis(self.tensor(), indices.tensor(), axis), "take along an axis")
    }

    /// This array with `values` at `indices` of each line along an axis.
    pub(crate) fn put_along_axis(&self, indices: &Self, values: &Self, axis: i32) -> Result<Self> {
        Self::made(
            sys::put_along_axis(self.tensor(), indices.tensor(), values.tensor(), axis),
            "put along an axis",
        )
    }

    /// This array with `values` added at `indices` of each line along an axis; duplicate indices add up.
    pub(crate) fn scatter_add_axis(&self, indices: &Self, values: &Self, axis: i32) -> Result<Self> {
        Self::made(
            sys::scatter_add_axis(self.tensor(), indices.tensor(), values.tensor(), axis),
            "add along an axis",
        )
    }
}
