//! Norms and elementwise operations.

use mlxcel_models::walk::Ops;
use mlxcel_models::{Norm, NormKind};
use mlxcel_stablehlo::{ElementType, Result, Value};

use super::GraphOps;
use crate::layers;

impl<'f> GraphOps<'_, '_, 'f> {
    /// Two values of one rank, their dimensions of size one repeated to the size that the other has.
    pub(super) fn aligned(&mut self, a: Value<'f>, b: Value<'f>) -> Result<(Value<'f>, Value<'f>)> {
        let (left, right) = (self.b.shape(a), self.b.shape(b));
        if left == right {
            return Ok((a, b));
        }
        let shape: Vec<usize> = left.iter().zip(&right).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
        let dimensions: Vec<usize> = (0..shape.len()).collect();
        let mut repeated = |x: Value<'f>, own: &[usize]| {
            if own == shape { Ok(x) } else { self.b.broadcast_in_dim(x, &shape, &dimensions) }
        };
        Ok((repeated(a, &left)?, repeated(b, &right)?))
    }

    /// `x` normalized over the last dimension.
    pub(super) fn normalise(&mut self, x: Value<'f>, norm: &Norm) -> Result<Value<'f>> {
        let Norm { kind, weight, bias, epsilon, offset, width: _ } = *norm;
        let factors = match weight {
            Some(weight) if offset == 0.0 => Some(self.weights.dense(weight)?),
            Some(weight) => {
                let factors = self.weights.vector(self.b, weight)?;
                Some(self.offset(&factors, offset)?)
            }
            None => None,
        };
        // One factor an element of the last dimension is what the composite takes.
        let plain = factors.filter(|&factors| self.b.shape(factors).len() == 1 && bias.is_none());
        if let (NormKind::Rms, Some(factors)) = (kind, plain) {
            return layers::rms_norm(self.b, x, factors, epsilon);
        }
        let mut y = match kind {
            NormKind::Rms => self.rms_normalise(x, epsilon)?,
            NormKind::Layer => self.layer_normalise(x, epsilon)?,
        };
        if let Some(factors) = factors {
            let factors = self.b.convert(factors, ElementType::F32)?;
            let factors = self.b.broadcast_like(factors, y)?;
            y = self.b.multiply(y, factors)?;
        }
        if let Some(bias) = bias {
            let bias = self.weights.vector(self.b, bias)?;
            let bias = self.b.broadcast_like(bias, y)?;
            y = self.b.add(y, bias)?;
        }
        Ok(y)
    }

    /// `x / √(mean(x²) + epsilon)` over the last dimension.
    pub(super) fn rms_normalise(&mut self, x: Value<'f>, epsilon: f32) -> Result<Value<'f>> {
        let squares = self.b.multiply(x, x)?;
        let mean = self.mean_of_last(squares)?;
        self.divided_by_root(x, mean, epsilon)
    }

    /// `(x − mean) / √(variance + epsilon)` over the last dimension.
    pub(super) fn layer_normalise(&mut self, x: Value<'f>, epsilon: f32) -> Result<Value<'f>> {
        let shape = self.b.shape(x);
        let last = shape.len() - 1;
        let mean = self.mean_of_last(x)?;
        let mean = self.b.expand(mean, &shape, &[last])?;
        let centred = self.b.subtract(x, mean)?;
        let squares = self.b.multiply(centred, centred)?;
        let variance = self.mean_of_last(squares)?;
        self.divided_by_root(centred, variance, epsilon)
    }

    /// The mean over the last dimension, which the result lacks.
    pub(super) fn mean_of_last(&mut self, x: Value<'f>) -> Result<Value<'f>> {
        let shape = self.b.shape(x);
        let last = shape.len() - 1;
        let sum = self.b.sum(x, &[last])?;
        let count = self.b.splat(ElementType::F32, shape[last] as f64, &shape[..last])?;
        self.b.divide(sum, count)
    }

    fn divided_by_root(&mut self, x: Value<'f>, square: Value<'f>, epsilon: f32) -> Result<Value<'f>> {
        let shape = self.b.shape(x);
        let last = shape.len() - 1;
        let epsilon = self.b.splat(ElementType::F32, f64::from(epsilon), &shape[..last])?;
        let square = self.b.add(square, epsilon)?;
        let factor = self.b.rsqrt(square)?;
        let factor = self.b.expand(factor, &shape, &[last])?;
        self.b.multiply(x, factor)
    }

    /// Rows of `x` (`[tokens, width]` or `[tokens, heads, width]`) by index.
    pub(super) fn take_rows(&mut self, x: Value<'f>, rows: Value<'f>) -> Result<Value<'f>> {
        let shape = self.b.shape(x);
        if shape.len() == 2 {
            return self.b.take(x, rows);
        }
        let flat = self.b.reshape(x, &[shape[0], shape[1..].iter().product()])?;
        let taken = self.b.take(flat, rows)?;
        let mut taken_shape = shape;
        taken_shape[0] = self.b.shape(taken)[0];
        self.b.reshape(taken, &taken_shape)
    }
}
