//! Random numbers, counter-based: the same key gives the same numbers on every device (Salmon et al. 2011, Threefry).

use mlxcel_core::Result;

use super::{Array, DType, size, sizes};
use crate::ffi::sys;

/// What random numbers are a function of. MLX's key with a state, one for each thread, is not used.
#[derive(Debug)]
pub(crate) struct Key(Array);

impl Key {
    /// The key of a seed.
    pub(crate) fn new(seed: u64) -> Result<Self> {
        Array::made(sys::random_key(seed), "make a random key").map(Self)
    }

    /// A key that an array of two `U32` holds.
    pub(crate) fn from_array(key: Array) -> Self {
        Self(key)
    }

    /// `count` keys of independent numbers, as `[count, 2]`.
    pub(crate) fn split(&self, count: usize) -> Result<Array> {
        const OPERATION: &str = "split a random key";
        Array::made(sys::random_split(self.0.tensor(), size(count, OPERATION)?), OPERATION)
    }

    /// Random bits, as `U32`.
    pub(crate) fn bits(&self, shape: &[usize]) -> Result<Array> {
        const OPERATION: &str = "draw";
        Array::made(sys::random_bits(&sizes(shape, OPERATION)?, 4, self.0.tensor()), OPERATION)
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn uniform(&self, shape: &[usize], dtype: DType) -> Result<Array> {
        const OPERATION: &str = "draw";
        Array::made(sys::random_uniform(&sizes(shape, OPERATION)?, dtype.code(), self.0.tensor()), OPERATION)
    }

    /// From the standard Gumbel distribution: `argmax(logits + gumbel)` is a draw from `softmax(logits)`.
    pub(crate) fn gumbel(&self, shape: &[usize], dtype: DType) -> Result<Array> {
        const OPERATION: &str = "draw";
        Array::made(sys::random_gumbel(&sizes(shape, OPERATION)?, dtype.code(), self.0.tensor()), OPERATION)
    }

    /// An index along the axis for each line of logits, as `U32`.
    pub(crate) fn categorical(&self, logits: &Array, axis: i32) -> Result<Array> {
        Array::made(sys::random_categorical(logits.tensor(), axis, self.0.tensor()), "draw")
    }
}
