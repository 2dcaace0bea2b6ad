//! The parts of a decoder network as operations: norms, attention, MLP, head.

use mlxcel_models::{Activation, Attention, Decoder, Linear, Mixer, Mlp, Norm, Rope, WeightRef};
use mlxcel_stablehlo::{
    Builder, CachedAttention, CachedAttentionOperands, ElementType, Error, ErrorKind, Result, Value,
};

use crate::numerics::Numerics;
use crate::weights::Weights;

/// A decoder being written into a function.
pub(crate) struct Network<'a, 'f> {
    decoder: &'a Decoder,
    ropes: &'a [&'a Rope],
    /// Cosines and sines of each rope, `[tokens, rotary_dim / 2]`.
    rotary: Vec<(Value<'f>, Value<'f>)>,
    weights: Weights<'a, 'f>,
    /// How many tokens each row has.
    rows: &'a [usize],
    /// `[rows]` i32: the position of each row's first token.
    positions: Value<'f>,
}

impl<'a, 'f> Network<'a, 'f> {
    pub(crate) fn new(
        decoder: &'a Decoder,
        numerics: Numerics,
        ropes: &'a [&'a Rope],
        rotary: Vec<(Value<'f>, Value<'f>)>,
        weights: Vec<(&'a WeightRef, Value<'f>)>,
        rows: &'a [usize],
        positions: Value<'f>,
    ) -> Self {
        let weights = Weights::new(weights.into_iter().collect(), numerics.operand);
        Self { decoder, ropes, rotary, weights, rows, positions }
    }

    /// The normed hidden states (`[tokens, hidden]`) of all tokens; each row's keys and values go into its cache.
    pub(crate) fn run(
        &mut self,
        b: &mut Builder<'f>,
        tokens: Value<'f>,
        caches: &mut [Value<'f>],
    ) -> Result<Value<'f>> {
        let mut hidden = self.weights.embedding(b, &self.decoder.embedding.weight, tokens)?;
        for (index, layer) in self.decoder.layers.iter().enumerate() {
            let normed = self.norm(b, &layer.mixer_norm, hidden)?;
            let mixed = match &layer.mixer {
                Mixer::Attention(attention) => self.attention(b, index, attention, normed, caches)?,
                _ => {
                    return Err(Error::new(
                        ErrorKind::Structure,
                        "mixer",
                        "only attention can be written as a graph",
                    ));
                }
            };
            hidden = b.add(hidden, mixed)?;
            let normed = self.norm(b, &layer.mlp_norm, hidden)?;
            let changed = self.mlp(b, &layer.mlp, normed)?;
            hidden = b.add(hidden, changed)?;
        }
        Ok(hidden)
    }

    /// The logits (`[rows, vocabulary]` f32) of hidden states (`[rows, hidden]`).
    pub(crate) fn head(&self, b: &mut Builder<'f>, hidden: Value<'f>) -> Result<Value<'f>> {
        let normed = self.norm(b, &self.decoder.norm, hidden)?;
        self.weights.linear(b, normed, &self.decoder.head.weight, None)
    }

    fn linear(&self, b: &mut Builder<'f>, linear: &Linear, x: Value<'f>) -> Result<Value<'f>> {
        self.weights.linear(b, x, &linear.weight, linear.bias.as_ref())
    }

    fn norm(&self, b: &mut Builder<'f>, norm: &Norm, x: Value<'f>) -> Result<Value<'f>> {
        b.rms_norm(x, self.weights.dense(&norm.weight)?, norm.epsilon)
    }

    fn mlp(&self, b: &mut Builder<'f>, mlp: &Mlp, x: Value<'f>) -> Result<Value<'f>> {
        let gate = self.linear(b, &mlp.gate, x)?;
        let up = self.linear(b, &mlp.up, x)?;
        let gate = activate(b, mlp.activation, gate)?;
        let gated = b.multiply(gate, up)?;
        self.linear(b, &mlp.down, gated)
    }

    /// Attention of each row over its own cache (`[layers, 2, kv_heads, length, head_dim]`), written first.
    fn attention(
        &self,
        b: &mut Builder<'f>,
        layer: usize,
        attention: &Attention,
        x: Value<'f>,
        caches: &mut [Value<'f>],
    ) -> Result<Value<'f>> {
        let tokens = b.shape(x)[0];
        let (query_heads, kv_heads, head_dim) =
            (attention.query_heads, attention.kv_heads, attention.head_dim);
        let query = self.linear(b, &attention.query, x)?;
        let key = self.linear(b, &attention.key, x)?;
        let value = self.linear(b, &attention.value, x)?;
        let query = b.reshape(query, &[tokens, query_heads, head_dim])?;
        let key = b.reshape(key, &[tokens, kv_heads, head_dim])?;
        let value = b.reshape(value, &[tokens, kv_heads, head_dim])?;
        let (cos, sin) = self.rotary_of(attention)?;
        let operands = CachedAttentionOperands {
            query,
            key,
            value,
            cos,
            sin,
            positions: self.positions,
            caches: &*caches,
        };
        let what = CachedAttention {
            rows: self.rows,
            layer,
            scale: attention.scale,
            window: attention.window,
            out: self.weights.operand_of(&attention.output.weight),
        };
        let (mixed, updated) = b.cached_attention(&operands, &what)?;
        caches.copy_from_slice(&updated);
        self.linear(b, &attention.output, mixed)
    }

    fn rotary_of(&self, attention: &Attention) -> Result<(Value<'f>, Value<'f>)> {
        let index = self.ropes.iter().position(|&rope| *rope == attention.rope);
        let found = index.and_then(|index| self.rotary.get(index).copied());
        found.ok_or_else(|| {
            Error::new(ErrorKind::Name, "rope", "the layer's rotary embedding is not among the decoder's")
        })
    }
}

/// The activation of `x` in float32.
///
/// `Gelu` is x·Φ(x) and `GeluTanh` its approximation by tanh (arXiv:1606.08415), as transformers' `ACT2FN` names them.
fn activate<'f>(b: &mut Builder<'f>, activation: Activation, x: Value<'f>) -> Result<Value<'f>> {
    let shape = b.shape(x);
    match activation {
        Activation::Silu => {
            let gate = b.logistic(x)?;
            b.multiply(x, gate)
        }
        Activation::Relu => {
            let zero = b.splat(ElementType::F32, 0.0, &shape)?;
            b.maximum(x, zero)
        }
        Activation::GeluTanh => {
            // 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
            let square = b.multiply(x, x)?;
            let cube = b.multiply(square, x)?;
            let weight = b.splat(ElementType::F32, 0.044715, &shape)?;
            let cubic = b.multiply(cube, weight)?;
            let inner = b.add(x, cubic)?;
            let scale = b.splat(ElementType::F32, (2.0 / std::f64::consts::PI).sqrt(), &shape)?;
            let inner = b.multiply(inner, scale)?;
            let tanh = b.tanh(inner)?;
            let one = b.splat(ElementType::F32, 1.0, &shape)?;
            let sum = b.add(tanh, one)?;
            let half = b.splat(ElementType::F32, 0.5, &shape)?;
            let half = b.multiply(x, half)?;
            b.multiply(half, sum)
        }
        Activation::Gelu => {
            let scale = b.splat(ElementType::F32, std::f64::consts::FRAC_1_SQRT_2, &shape)?;
            let scaled = b.multiply(x, scale)?;
            let erf = erf(b, scaled)?;
            let one = b.splat(ElementType::F32, 1.0, &shape)?;
            let sum = b.add(erf, one)?;
            let half = b.splat(ElementType::F32, 0.5, &shape)?;
            let half = b.multiply(x, half)?;
            b.multiply(half, sum)
        }
        other => Err(Error::new(
            ErrorKind::Structure,
            "activation",
            format!("{other:?} cannot be written as a graph"),
        )),
    }
}

/// The error function in float32, by Abramowitz and Stegun's formula 7.1.26, whose error is at most 1.5e-7.
fn erf<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<Value<'f>> {
    const COEFFICIENTS: [f64; 5] =
        [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let shape = b.shape(x);
    let one = b.splat(ElementType::F32, 1.0, &shape)?;
    let magnitude = b.abs(x)?;
    let step = b.splat(ElementType::F32, 0.327_591_1, &shape)?;
    let t = b.multiply(magnitude, step)?;
    let t = b.add(t, one)?;
    let t = b.divide(one, t)?;
    let mut sum = b.splat(ElementType::F32, 0.0, &shape)?;
    for coefficient in COEFFICIENTS {
        let coefficient = b.splat(ElementType::F32, coefficient, &shape)?;
        sum = b.add(sum, coefficient)?;
        sum = b.multiply(sum, t)?;
    }
    let square = b.multiply(x, x)?;
    let decay = b.negate(square)?;
    let decay = b.exponential(decay)?;
    let tail = b.multiply(sum, decay)?;
    let value = b.subtract(one, tail)?;
    let sign = b.sign(x)?;
    b.multiply(sign, value)
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::eval::{Input, Program, Tensor};
    use mlxcel_stablehlo::{ModuleBuilder, TensorType};

    use super::*;

    fn activated(activation: Activation, values: &[f32]) -> Vec<f32> {
        let mut module = ModuleBuilder::new("test");
        let ty = TensorType::new(ElementType::F32, [values.len()]);
        module
            .function("main", |b| {
                let x = b.argument("x", ty.clone())?;
                Ok(vec![activate(b, activation, x)?])
            })
            .unwrap();
        let program = Program::plan(&module.finish(), "main").unwrap();
        let x = Tensor::from_slice([values.len()], values).unwrap();
        program.run(vec![Input::Owned(x)]).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    }

    /// The error function by Simpson's rule over its integral.
    fn erf(x: f64) -> f64 {
        let steps = 2000;
        let width = x / f64::from(steps);
        let term = |i: i32| {
            let weight = if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
            weight * (-(f64::from(i) * width).powi(2)).exp()
        };
        (0..=steps).map(term).sum::<f64>() * width / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn activations_are_those_of_their_formulas() {
        let values: Vec<f32> = (-60..=60).map(|i| i as f32 / 10.0).collect();
        type Formula = fn(f64) -> f64;
        let formulas: [(Activation, Formula); 4] = [
            (Activation::Silu, |x| x / (1.0 + (-x).exp())),
            (Activation::Relu, |x| x.max(0.0)),
            (Activation::Gelu, |x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))),
            (Activation::GeluTanh, |x| {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }),
        ];
        for (activation, formula) in formulas {
            for (value, result) in values.iter().zip(activated(activation, &values)) {
                let wanted = formula(f64::from(*value));
                assert!(
                    (f64::from(result) - wanted).abs() < 2e-6,
                    "{activation:?} of {value}: {result}, not {wanted}"
                );
            }
        }
    }
}
