//! Tensors of float32, and functions of their rows.

use std::rc::Rc;

use mlxcel_models::{Activation, Rope};

/// A tensor, row-major.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(super) shape: Vec<usize>,
    pub(super) data: Rc<Vec<f32>>,
}

impl Tensor {
    pub(super) fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Self { shape, data: Rc::new(data) }
    }

    pub(super) fn width(&self) -> usize {
        *self.shape.last().unwrap()
    }

    /// The last dimension's slices.
    pub(crate) fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.width())
    }

    pub(super) fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self::new(self.shape.clone(), self.data.iter().map(|&x| f(x)).collect())
    }

    /// Each row by a function, all results of one width.
    pub(super) fn map_rows(&self, f: impl Fn(usize, &[f32]) -> Vec<f32>) -> Self {
        let rows = self.rows().enumerate().map(|(index, row)| f(index, row)).collect::<Vec<_>>();
        let mut shape = self.shape.clone();
        *shape.last_mut().unwrap() = rows[0].len();
        Self::new(shape, rows.concat())
    }

    pub(super) fn zip(&self, other: &Self, f: impl Fn(f32, f32) -> f32) -> Self {
        assert_eq!(self.shape.len(), other.shape.len(), "{:?} and {:?}", self.shape, other.shape);
        let shape: Vec<usize> = self.shape.iter().zip(&other.shape).map(|(&a, &b)| a.max(b)).collect();
        let at = |tensor: &Self, mut index: usize| {
            let (mut offset, mut stride) = (0, 1);
            for (&size, &own) in shape.iter().zip(&tensor.shape).rev() {
                assert!(own == size || own == 1, "{:?} in {shape:?}", tensor.shape);
                offset += if own == 1 { 0 } else { index % size * stride };
                stride *= own;
                index /= size;
            }
            tensor.data[offset]
        };
        let data = (0..shape.iter().product()).map(|index| f(at(self, index), at(other, index))).collect();
        Self::new(shape, data)
    }
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

pub(super) fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = scores.iter().map(|score| (score - most).exp()).collect::<Vec<_>>();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

pub(super) fn activated(x: f32, activation: Activation) -> f32 {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => {
            let erf = erf(f64::from(x) / std::f64::consts::SQRT_2) as f32;
            0.5 * x * (1.0 + erf)
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Softplus => {
            if x > 20.0 {
                x
            } else {
                x.exp().ln_1p()
            }
        }
    }
}

/// The error function by its power series, which for arguments of this size converges to double precision.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// `x` at `position`, rotated in its first elements.
pub(super) fn rotated(x: &[f32], rope: &Rope, position: usize, length: usize) -> Vec<f32> {
    let half = rope.rotary_dim / 2;
    let (mut cos, mut sin) = (vec![1.0; half], vec![0.0; half]);
    rope.cos_sin(position, length, &mut cos, &mut sin);
    let mut out = x.to_vec();
    for pair in 0..half {
        let (a, b) = (x[pair], x[pair + half]);
        out[pair] = a * cos[pair] - b * sin[pair];
        out[pair + half] = b * cos[pair] + a * sin[pair];
    }
    out
}

/// The indices of the `count` largest, largest first; ties go to the lowest.
pub(super) fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut indices = (0..values.len()).collect::<Vec<_>>();
    indices.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    indices.truncate(count);
    indices
}
