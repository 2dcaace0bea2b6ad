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

const OPERATION: &str = "apply head";

/// Pools the hidden states of a text, and applies layers to the result.
#[derive(Clone, Debug, PartialEq)]
pub struct TextHead {
    /// The size of hidden states.
    pub inputs: usize,
    /// Layers that each hidden state goes through before it is pooled, in order.
    pub token_layers: Vec<HeadLayer>,
    /// How states are pooled; the results of several are joined.
    pub poolings: Vec<TokenPooling>,
    /// Whether the tokens of a prompt before the text are pooled too.
    pub includes_prompt: bool,
    /// The layers behind, in order.
    pub layers: Vec<HeadLayer>,
}

/// How a [`TextHead`] pools the states of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenPooling {
    /// The first state.
    First,
    /// The last state.
    Last,
    /// The mean.
    Mean,
    /// The mean times the square root of the number of tokens.
    ScaledMean,
    /// The mean, weighted by the place of each token, from 1 on.
    WeightedMean,
    /// The largest of each element.
    Max,
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
        let outputs = |width, layers: &[HeadLayer]| {
            layers.iter().fold(width, |width: usize, layer| layer.outputs(width))
        };
        outputs(outputs(self.inputs, &self.token_layers) * self.poolings.len(), &self.layers)
    }

    /// How an engine pools the hidden states for [`apply`](Self::apply); `None` if that needs each state.
    pub fn pooling(&self) -> Option<Pooling> {
        match self.poolings[..] {
            _ if !self.token_layers.is_empty() => None,
            [TokenPooling::Last] => Some(Pooling::Last),
            _ if !self.includes_prompt => None,
            [TokenPooling::First] => Some(Pooling::First),
            [TokenPooling::Mean | TokenPooling::ScaledMean] => Some(Pooling::Mean),
            _ => None,
        }
    }

    /// The result for a text of `tokens` tokens, the first `prompt` of which are a prompt. `states` are the
    /// pooled hidden state, or each if there is no [`pooling`](Self::pooling).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for states of another size, or if no token is left behind the prompt.
    pub fn apply(&self, states: &[f32], tokens: usize, prompt: usize) -> Result<Vec<f32>> {
        let is_pooled = self.pooling().is_some();
        let count = if is_pooled { 1 } else { tokens };
        if states.len() != self.inputs * count {
            let message = "the hidden states do not have the size that the head is for";
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                .with_context("inputs", self.inputs * count)
                .with_context("hidden_size", states.len()));
        }
        let pooled = if is_pooled {
            let scale = match self.poolings[..] {
                [TokenPooling::ScaledMean] => (tokens as f64).sqrt(),
                _ => 1.0,
            };
            states.iter().map(|&x| (f64::from(x) * scale) as f32).collect()
        } else {
            let skipped = if self.includes_prompt { 0 } else { prompt };
            let through = |state: &[f32]| applied(&self.token_layers, state.to_vec());
            let states: Vec<_> = states.chunks_exact(self.inputs.max(1)).skip(skipped).map(through).collect();
            if states.is_empty() {
                let message = "no token of the text is left behind its prompt";
                return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                    .with_context("tokens", tokens)
                    .with_context("prompt", prompt));
            }
            self.poolings.iter().flat_map(|pooling| pooling.pool(&states, skipped)).collect()
        };
        Ok(applied(&self.layers, pooled))
    }
}

/// `x` after `layers`.
fn applied(layers: &[HeadLayer], x: Vec<f32>) -> Vec<f32> {
    layers.iter().fold(x, |x, layer| layer.apply(x))
}

impl TokenPooling {
    /// The pooled one of `states`, of which there is at least one, behind `skipped` others.
    fn pool(self, states: &[Vec<f32>], skipped: usize) -> Vec<f32> {
        let width = states.first().map_or(0, Vec::len);
        let mean = |weight: &dyn Fn(usize) -> f64, divisor: f64| {
            let sum = |element: usize| {
                let weighted = |(index, state): (usize, &Vec<f32>)| weight(index) * f64::from(state[element]);
                states.iter().enumerate().map(weighted).sum::<f64>()
            };
            (0..width).map(|element| (sum(element) / divisor) as f32).collect()
        };
        let count = states.len() as f64;
        match self {
            Self::First => states.first().cloned().unwrap_or_default(),
            Self::Last => states.last().cloned().unwrap_or_default(),
            Self::Mean => mean(&|_| 1.0, count),
            Self::ScaledMean => mean(&|_| 1.0, count.sqrt()),
            Self::WeightedMean => {
                let place = |index: usize| (skipped + index + 1) as f64;
                mean(&place, (0..states.len()).map(place).sum())
            }
            Self::Max => {
                let most = |element: usize| states.iter().map(|state| state[element]).reduce(f32::max);
                (0..width).filter_map(most).collect()
            }
        }
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
            inputs: 2,
            token_layers: Vec::new(),
            poolings: vec![TokenPooling::ScaledMean],
            includes_prompt: true,
            layers: vec![
                dense(&[1.0, 0.0, 0.0, -1.0, 1.0, 1.0], &[0.0, 0.0, 0.5], Some(Activation::Relu)),
                HeadLayer::Normalize,
            ],
        };
        assert!(head.normalizes());
        assert_eq!(head.outputs(), 3);
        // Twice the mean of four tokens.
        let found = head.apply(&[1.5, 1.0], 4, 0).unwrap();
        let length = (3.0f32.powi(2) + 5.5f32.powi(2)).sqrt();
        for (found, expected) in found.iter().zip([3.0 / length, 0.0, 5.5 / length]) {
            assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        assert_eq!(head.apply(&[1.0], 4, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn poolings_that_need_each_state_leave_out_a_prompt_and_are_joined() {
        use TokenPooling::{First, Last, Max, Mean, ScaledMean, WeightedMean};
        let head = |poolings: &[TokenPooling], includes_prompt| TextHead {
            inputs: 1,
            token_layers: vec![dense(&[2.0], &[0.0], Some(Activation::Relu))],
            poolings: poolings.to_vec(),
            includes_prompt,
            layers: Vec::new(),
        };
        let states = [1.0, -3.0, 4.0, 2.0, 3.0];
        let all = head(&[First, Last, Mean, ScaledMean, WeightedMean, Max], true);
        assert_eq!((all.pooling(), all.outputs()), (None, 6));
        let expected = [2.0, 6.0, 4.0, 20.0 / 5f32.sqrt(), (2.0 + 24.0 + 16.0 + 30.0) / 15.0, 8.0];
        for (found, expected) in all.apply(&states, 5, 3).unwrap().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        let behind = head(&[First, Mean, WeightedMean], false);
        assert_eq!(behind.apply(&states, 5, 3).unwrap(), [4.0, 5.0, (16.0 + 30.0) / 9.0]);
        assert_eq!(behind.apply(&states, 5, 5).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn engines_pool_where_they_can() {
        let pooling = |pooling, includes_prompt| {
            let (token_layers, layers) = (Vec::new(), Vec::new());
            TextHead { inputs: 1, token_layers, poolings: vec![pooling], includes_prompt, layers }.pooling()
        };
        assert_eq!(pooling(TokenPooling::Last, false), Some(Pooling::Last));
        assert_eq!(pooling(TokenPooling::ScaledMean, true), Some(Pooling::Mean));
        assert_eq!(pooling(TokenPooling::First, true), Some(Pooling::First));
        for of in [pooling(TokenPooling::Mean, false), pooling(TokenPooling::Max, true)] {
            assert_eq!(of, None);
        }
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
