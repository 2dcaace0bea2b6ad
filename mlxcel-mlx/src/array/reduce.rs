//! Operations along axes.

use mlxcel_core::Result;

use super::{Array, size};
use crate::ffi::sys::{self, ReduceCode};

impl Array {
    /// `keep` keeps the axes in the shape, with size one.
    fn reduce(&self, code: ReduceCode, axes: &[i32], keep: bool, operation: &'static str) -> Result<Self> {
        Self::made(sys::reduce(code, self.tensor(), axes, keep), operation)
    }

    /// The logarithm of the sum of exponentials, without overflow.
    pub(crate) fn logsumexp(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::LogSumExp, axes, keep, "logsumexp")
    }

    /// The largest.
    pub(crate) fn max(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Max, axes, keep, "max")
    }

    /// The sum.
    pub(crate) fn sum(&self, axes: &[i32], keep: bool) -> Result<Self> {
        self.reduce(ReduceCode::Sum, axes, keep, "sum")
    }

    /// The softmax, computed in float32.
    pub(crate) fn softmax(&self, axis: i32) -> Result<Self> {
        Self::made(sys::softmax(self.tensor(), axis), "softmax")
    }

    /// The index of the largest, as `U32`; ties go to the first.
    pub(crate) fn argmax(&self, axis: i32, keep: bool) -> Result<Self> {
        Self::made(sys::argmax(self.tensor(), axis, keep), "argmax")
    }

    /// Cumulative sums along the axis; `inclusive` of the element itself.
    pub(crate) fn cumsum(&self, axis: i32, inclusive: bool) -> Result<Self> {
        Self::made(sys::cumsum(self.tensor(), axis, inclusive), "cumsum")
    }

    /// The elements in ascending order.
    pub(crate) fn sort(&self, axis: i32) -> Result<Self> {
        Self::made(sys::sort(self.tensor(), axis), "sort")
    }

    /// The indices of the elements in ascending order, as `U32`.
    pub(crate) fn argsort(&self, axis: i32) -> Result<Self> {
        Self::made(sys::argsort(self.tensor(), axis), "argsort")
    }

    /// The elements with the `kth` smallest at index `kth`, none larger before it and none smaller after it.
    pub(crate) fn partition(&self, kth: usize, axis: i32) -> Result<Self> {
        Self::made(sys::partition(self.tensor(), size(kth, "partition")?, axis), "partition")
    }
}
