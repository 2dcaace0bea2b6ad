//! Matrices over pairs of a chunk's tokens, for recurrences computed in chunks.

use std::collections::HashMap;
use std::rc::Rc;

use mlxcel_core::Result;

use crate::array::{Array, DType};

/// The matrices of each chunk length, created once per pass.
#[derive(Debug, Default)]
pub(in crate::engine) struct Triangles(HashMap<usize, Rc<Triangle>>);

/// The matrices of one length, `[length, length]` each.
#[derive(Debug)]
pub(super) struct Triangle {
    /// Whether a row's token is at or after its column's.
    past: Array,
    identity: Array,
    /// For blocks of 1, 2, 4, … tokens: one if the column is in the left block of a pair and the row in the
    /// right one.
    pairs: Vec<Array>,
}

impl Triangles {
    pub(super) fn get(&mut self, length: usize) -> Result<Rc<Triangle>> {
        if let Some(known) = self.0.get(&length) {
            return Ok(Rc::clone(known));
        }
        let made = Rc::new(Triangle::new(length)?);
        self.0.insert(length, Rc::clone(&made));
        Ok(made)
    }
}

impl Triangle {
    fn new(length: usize) -> Result<Self> {
        let matrix = |holds: &dyn Fn(usize, usize) -> bool| {
            let row = |i| (0..length).map(move |j| f32::from(u8::from(holds(i, j))));
            let values: Vec<f32> = (0..length).flat_map(row).collect();
            Array::from_slice(&values, &[length, length])
        };
        let mut pairs = Vec::new();
        let mut size = 1;
        while size < length {
            pairs.push(matrix(&|i, j| i / (2 * size) == j / (2 * size) && i / size > j / size)?);
            size *= 2;
        }
        Ok(Self {
            past: matrix(&|i, j| i >= j)?.astype(DType::Bool)?,
            identity: matrix(&|i, j| i == j)?,
            pairs,
        })
    }

    /// The decay from each column's token to each row's, from cumulative sums of log decays (`[heads, length,
    /// channels]`): `[heads, length, length, channels]`, zero for later columns.
    pub(super) fn decays(&self, sums: &Array) -> Result<Array> {
        let between = sums.expand_dims(&[2])?.subtract(&sums.expand_dims(&[1])?)?;
        self.past.expand_dims(&[2])?.select(&between, &Array::scalar(f32::NEG_INFINITY, DType::F32)?)?.exp()
    }

    /// `(I + strict)⁻¹`, which reads only the part of `strict` (`[heads, length, length]`) below the
    /// diagonal. By blockwise substitution: the inverse of `[[P, 0], [Q, R]]` is `[[P⁻¹, 0], [−R⁻¹·Q·P⁻¹,
    /// R⁻¹]]`.
    pub(super) fn inverse(&self, strict: &Array) -> Result<Array> {
        let mut inverse = self.identity.broadcast_to(&strict.shape())?;
        for pairs in &self.pairs {
            let block = strict.multiply(pairs)?;
            inverse = inverse.subtract(&inverse.matmul(&block)?.matmul(&inverse)?)?;
        }
        Ok(inverse)
    }
}
