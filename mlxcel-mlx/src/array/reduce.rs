//! Operations along axes.

use mlxcel_core::Result;

use super::{Array, size};
use crate::ffi::sys::{self, ReduceCode};

impl Array {
    /// `keep` leaves the axes in the shape, with size one.
    fn reduce(&self, code: ReduceCode, axes: &[i32], keep: bool, operation: &'static str) -> Result<Self> {
        Self::made(sys::reduce(code, self.tensor(), axes, keep), operation)
    }

    /// Whether all are true.
    pub(crate) fn all(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::All, axes, keep, "all")
    }

    /// Whether one is true.
    pub(crate) fn any(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Any, axes, keep, "any")
    }

    /// The logarithm of the sum of exponentials, without overflow.
    pub(crate) fn logsumexp(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::LogSumExp, axes, keep, "logsumexp")
    }

    /// The largest.
    pub(crate) fn max(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Max, axes, keep, "max")
    }

    /// The mean.
    pub(crate) fn mean(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Mean, axes, keep, "mean")
    }

    /// The smallest.
    pub(crate) fn min(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Min, axes, keep, "min")
    }

    /// The sum.
    pub(crate) fn sum(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Sum, axes, keep, "sum")
    }

    /// Where the largest stands, as `U32`; the first of equals.
    pub(crate) fn argmax(&self, axis: i32, keep: bool) -> Result<Self> {
        Self::made(sys::argmax(self.tensor(), axis, keep), "argmax")
    }

    /// Exponentials over their sum; in float32 inside where `precise`.
    pub(crate) fn softmax(&self, axis: i32, precise: bool) -> Result<Self> {
        Self::made(sys::softmax(self.tensor(), axis, precise), "softmax")
    }

    /// Running sums from the beginning of the axis; `inclusive` of the element itself.
    pub(crate) fn cumsum(&self, axis: i32, inclusive: bool) -> Result<Self> {
        Self::made(sys::cumsum(self.tensor(), axis, false, inclusive), "cumsum")
    }

    /// The elements in ascending order.
    pub(crate) fn sort(&self, axis: i32) -> Result<Self> {
        Self::made(sys::sort(self.tensor(), axis), "sort")
    }

    /// Where the elements in ascending order stand, as `U32`.
    pub(crate) fn argsort(&self, axis: i32) -> Result<Self> {
        Self::made(sys::argsort(self.tensor(), axis), "argsort")
    }

    /// The elements with the `kth` of the ascending order in its place, none larger before it and none smaller behind.
    pub(crate) fn partition(&self, kth: usize, axis: i32) -> Result<Self> {
        Self::made(sys::partition(self.tensor(), size(kth, "partition")?, axis), "partition")
    }

    /// Where the elements of [`partition`](Self::partition) stand, as `U32`.
    pub(crate) fn argpartition(&self, kth: usize, axis: i32) -> Result<Self> {
        const OPERATION: &str = "argpartition";
        Self::made(sys::argpartition(self.tensor(), size(kth, OPERATION)?, axis), OPERATION)
    }
}
