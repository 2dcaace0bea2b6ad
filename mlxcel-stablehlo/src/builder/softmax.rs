//! Argmax and the softmax family, numerically stable and computed in f32.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::types::{ElementType, TensorType};

impl<'f> Builder<'f> {
    /// The maxima of `x` along `dimension`, which is removed, and their indices as i32. Ties go to the first.
    ///
    /// # Errors
    /// An invalid or empty dimension; booleans.
    pub fn argmax(&mut self, x: Value<'f>, dimension: usize) -> Result<(Value<'f>, Value<'f>)> {
        let counts = TensorType::new(ElementType::I32, self.shape(x));
        // Checked before the indices are made, so that the error speaks of x.
        infer::reduce_argmax(self.ty(x), &counts, dimension)?;
        let indices = self.iota(counts, dimension)?;
        self.reduce_argmax(x, indices, dimension)
    }

    /// Softmax along `dimension`: probabilities from logits, in the type of `x`. Computed in f32 after
    /// subtracting the maximum.
    ///
    /// # Errors
    /// An invalid dimension; elements that are not floats.
    pub fn softmax(&mut self, x: Value<'f>, dimension: usize) -> Result<Value<'f>> {
        let element = self.ty(x).element;
        let Shifted { powers, sum, .. } = self.shifted_powers(x, dimension)?;
        let shape = self.shape(x);
        let sum = self.expand(sum, &shape, &[dimension])?;
        let probabilities = self.divide(powers, sum)?;
        self.convert(probabilities, element)
    }

    /// The logarithm of the sum of exponentials of `x` along `dimension`, which is removed, in f32. Logits
    /// minus this are log probabilities.
    ///
    /// # Errors
    /// The errors of [`softmax`](Self::softmax).
    pub fn log_sum_exp(&mut self, x: Value<'f>, dimension: usize) -> Result<Value<'f>> {
        let Shifted { largest, sum, .. } = self.shifted_powers(x, dimension)?;
        let log = self.log(sum)?;
        self.add(log, largest)
    }

    /// The logarithm of [`softmax`](Self::softmax), computed without underflow: log probabilities from
    /// logits, in f32.
    ///
    /// # Errors
    /// The errors of [`softmax`](Self::softmax).
    pub fn log_softmax(&mut self, x: Value<'f>, dimension: usize) -> Result<Value<'f>> {
        let x = self.convert(x, ElementType::F32)?;
        let shape = self.shape(x);
        let norm = self.log_sum_exp(x, dimension)?;
        let norm = self.expand(norm, &shape, &[dimension])?;
        self.subtract(x, norm)
    }

    fn shifted_powers(&mut self, x: Value<'f>, dimension: usize) -> Result<Shifted<'f>> {
        let x = self.convert(x, ElementType::F32)?;
        let shape = self.shape(x);
        let largest = self.max(x, &[dimension])?;
        let shift = self.expand(largest, &shape, &[dimension])?;
        let shifted = self.subtract(x, shift)?;
        let powers = self.exponential(shifted)?;
        let sum = self.sum(powers, &[dimension])?;
        Ok(Shifted { largest, powers, sum })
    }
}

/// What the softmax family shares, in f32.
struct Shifted<'f> {
    /// The largest along the dimension.
    largest: Value<'f>,
    /// e to the power of each element less the largest.
    powers: Value<'f>,
    /// The sum of those along the dimension.
    sum: Value<'f>,
}
