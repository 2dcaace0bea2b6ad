//! The small layers behind a network that turn the hidden states of a text into an embedding or into scores
//! of classes.
//!
//! They are computed on the host, once for each text: of the arithmetic of an encoder that is less than a
//! percent, and engines need to know nothing about them.

mod answers;
mod classifier;
mod modules;

use mlxcel_core::{Error, ErrorKind, Pooling, Result};

use crate::decoder::Activation;

/// Pools the hidden states of a text, and applies layers to the result.
#[derive(Clone, Debug, PartialEq)]
pub struct TextHead {
    /// How hidden states are pooled.
    pub pooling: Pooling,
    /// Whether the mean is multiplied by the square root of the number of tokens.
    pub scaled_by_length: bool,
    /// The size of hidden states.
    pub inputs: usize,
    /// The layers, in order.
    pub layers: Vec<HeadLayer>,
}

/// A layer of a [`TextHead`].
#[derive(Clone, Debug, PartialEq)]
pub enum HeadLayer {
    /// `activation(x · weightᵀ + bias)`.
    Dense {
        /// `[outputs, inputs]`, row-major.
        weight: Vec<f32>,
        /// `[outputs]`, if any.
        bias: Option<Vec<f32>>,
        /// The activation, if any.
        activation: Option<Activation>,
    },
    /// A layer norm.
    Norm {
        /// `[inputs]`.
        weight: Vec<f32>,
        /// `[inputs]`, if any.
        bias: Option<Vec<f32>>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Scales the vector to length 1.
    Normalize,
}

impl TextHead {
    /// Whether the result has length 1.
    pub fn normalizes(&self) -> bool {
        matches!(self.layers.last(), Some(HeadLayer::Normalize))
    }

    /// The number of elements of the result.
    pub fn outputs(&self) -> usize {
        self.layers.iter().fold(self.inputs, |width, layer| layer.outputs(width))
    }

    /// The result for the pooled hidden state of a text of `tokens` tokens.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a state of another size.
    pub fn apply(&self, state: &[f32], tokens: usize) -> Result<Vec<f32>> {
        if state.len() != self.inputs {
            let message = "the hidden states do not have the size that the head is for";
            return Err(Error::new(ErrorKind::InvalidInput, "apply head", message)
                .with_context("inputs", self.inputs)
                .with_context("hidden_size", state.len()));
        }
        let scale = if self.scaled_by_length { (tokens as f64).sqrt() } else { 1.0 };
        let state = state.iter().map(|&x| (f64::from(x) * scale) as f32).collect();
        Ok(self.layers.iter().fold(state, |state, layer| layer.apply(state)))
    }
}

impl HeadLayer {
    fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense { weight, .. } => weight.len() / inputs.max(1),
            Self::Norm { .. } | Self::Normalize => inputs,
        }
    }

    fn apply(&self, x: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Dense { weight, bias, activation } => {
                let rows = weight.chunks_exact(x.len().max(1)).enumerate();
                let output = |(index, row): (usize, &[f32])| {
                    let products = row.iter().zip(&x).map(|(&a, &b)| f64::from(a) * f64::from(b));
                    let bias = bias.as_ref().and_then(|bias| bias.get(index)).copied().unwrap_or_default();
                    let sum = products.sum::<f64>() + f64::from(bias);
                    activation.map_or(sum, |activation| activated(sum, activation)) as f32
                };
                rows.map(output).collect()
            }
            Self::Norm { weight, bias, epsilon } => {
                let count = x.len().max(1) as f64;
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
                let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
                let scale = (variance + f64::from(*epsilon)).sqrt().recip();
                let normed = |(index, &x): (usize, &f32)| {
                    let of = |values: &[f32]| f64::from(values.get(index).copied().unwrap_or_default());
                    ((f64::from(x) - mean) * scale * of(weight) + bias.as_deref().map_or(0.0, of)) as f32
                };
                x.iter().enumerate().map(normed).collect()
            }
            Self::Normalize => normalized(x),
        }
    }
}

/// The vector at length 1; zeros stay as they are.
pub fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&element| f64::from(element).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|element| *element = (f64::from(*element) / length) as f32);
    }
    vector
}

fn activated(x: f64, activation: Activation) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// The error function, to single precision: its power series, in the form without alternating signs
/// (Abramowitz and Stegun, 7.1.6). Beyond 4 it is 1 in single precision.
fn erf(x: f64) -> f64 {
    if x.abs() > 4.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(weight: &[f32], bias: &[f32], activation: Option<Activation>) -> HeadLayer {
        HeadLayer::Dense { weight: weight.to_vec(), bias: Some(bias.to_vec()), activation }
    }

    #[test]
    fn layers_follow_one_another() {
        let head = TextHead {
            pooling: Pooling::Mean,
            scaled_by_length: true,
            inputs: 2,
            layers: vec![
                dense(&[1.0, 0.0, 0.0, -1.0, 1.0, 1.0], &[0.0, 0.0, 0.5], Some(Activation::Relu)),
                HeadLayer::Normalize,
            ],
        };
        assert!(head.normalizes());
        assert_eq!(head.outputs(), 3);
        // Twice the mean of four tokens.
        let found = head.apply(&[1.5, 1.0], 4).unwrap();
        let length = (3.0f32.powi(2) + 5.5f32.powi(2)).sqrt();
        for (found, expected) in found.iter().zip([3.0 / length, 0.0, 5.5 / length]) {
            assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        assert_eq!(head.apply(&[1.0], 4).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn norms_have_mean_zero_and_variance_one() {
        let norm = HeadLayer::Norm { weight: vec![1.0, 2.0], bias: Some(vec![0.0, 1.0]), epsilon: 0.0 };
        assert_eq!(norm.apply(vec![5.0, 9.0]), [-1.0, 3.0]);
    }

    #[test]
    fn the_error_function_has_known_values() {
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_877_813), (1.0, 0.842_700_792_95), (3.9, 0.999_999_965_2)]
        {
            assert!((erf(x) - expected).abs() < 1e-9, "{x}");
            assert!((erf(-x) + expected).abs() < 1e-9, "{x}");
        }
    }
}
