//! The operations of a walk in plain loops over float32: one sequence, from its start, with the logits of
//! every position.

use std::collections::HashMap;
use std::rc::Rc;

use mlxcel_core::Result;
use mlxcel_models::walk::{DeltaRuleOperands, Ops, Walk};
use mlxcel_models::{
    Activation, AttentionCore, AttentionMask, Checkpoint, Convolution, Decoder, HeadLinear, LatentAttention,
    Linear, Norm, NormKind, PositionScale, Rope, StateSlot, WeightId, WeightRef,
};

use crate::common::values::values;

/// A tensor, row-major.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    shape: Vec<usize>,
    data: Rc<Vec<f32>>,
}

impl Tensor {
    fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Self { shape, data: Rc::new(data) }
    }

    fn width(&self) -> usize {
        *self.shape.last().unwrap()
    }

    /// The last dimension's slices.
    pub(crate) fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.width())
    }

    fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self::new(self.shape.clone(), self.data.iter().map(|&x| f(x)).collect())
    }

    /// Each row by a function, all results of one width.
    fn map_rows(&self, f: impl Fn(usize, &[f32]) -> Vec<f32>) -> Self {
        let rows = self.rows().enumerate().map(|(index, row)| f(index, row)).collect::<Vec<_>>();
        let mut shape = self.shape.clone();
        *shape.last_mut().unwrap() = rows[0].len();
        Self::new(shape, rows.concat())
    }

    fn zip(&self, other: &Self, f: impl Fn(f32, f32) -> f32) -> Self {
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

pub(crate) struct Naive<'a> {
    tokens: &'a [u32],
    /// Empty if all are 0.
    types: &'a [u8],
    weights: Vec<Tensor>,
    /// The keys and values of attention so far, by their slots.
    kept: HashMap<StateSlot, [Tensor; 2]>,
    /// The positions that each token attends to, by the slots of the keys that selected them.
    selected: HashMap<StateSlot, Vec<Vec<usize>>>,
}

/// Which expert each row of a dispatched tensor is for.
pub(crate) struct Routing {
    experts: Vec<usize>,
    chosen: usize,
}

/// The logits at every position of `tokens`, which are the start of a sequence.
pub(crate) fn logits(checkpoint: &Checkpoint, decoder: &Decoder, tokens: &[u32]) -> Result<Tensor> {
    perturbed_logits(checkpoint, decoder, tokens, 0.0)
}

/// The same after every weight was changed by up to a part of itself, up or down: what rounding may do to
/// them.
pub(crate) fn perturbed_logits(
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    tokens: &[u32],
    part: f32,
) -> Result<Tensor> {
    // Multiples of an irrational number, less their integers, are spread evenly.
    let change = |index: usize| 1.0 + part * (2.0 * (index as f32 * 0.618_034).fract() - 1.0);
    let weight = |weight: &WeightRef| {
        let mut values = values(checkpoint, weight)?;
        values.iter_mut().enumerate().for_each(|(index, value)| *value *= change(index));
        Ok(Tensor::new(weight.shape.clone(), values))
    };
    let weights = decoder.weights().map(weight).collect::<Result<Vec<_>>>()?;
    let mut ops = Naive { tokens, types: &[], weights, kept: HashMap::new(), selected: HashMap::new() };
    let walk = Walk::new(decoder);
    let hidden = walk.hidden(decoder, &mut ops)?;
    walk.logits(&decoder.head.unwrap(), &hidden, &mut ops)
}

/// The hidden states of `tokens` with these `types`, a whole text.
#[allow(dead_code, reason = "not every test program has encoders")]
pub(crate) fn hidden(
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    tokens: &[u32],
    types: &[u8],
) -> Result<Tensor> {
    let weight = |weight: &WeightRef| Ok(Tensor::new(weight.shape.clone(), values(checkpoint, weight)?));
    let weights = decoder.weights().map(weight).collect::<Result<Vec<_>>>()?;
    let mut ops = Naive { tokens, types, weights, kept: HashMap::new(), selected: HashMap::new() };
    Walk::new(decoder).hidden(decoder, &mut ops)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = scores.iter().map(|score| (score - most).exp()).collect::<Vec<_>>();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn activated(x: f32, activation: Activation) -> f32 {
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
fn rotated(x: &[f32], rope: &Rope, position: usize, length: usize) -> Vec<f32> {
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

impl Naive<'_> {
    fn weight(&self, id: WeightId) -> &Tensor {
        &self.weights[id.index()]
    }

    fn attend(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        core: &AttentionCore,
    ) -> Result<Tensor> {
        let AttentionCore { scale, mask, window, rope, soft_cap, sinks, query_scale: _ } = core;
        let (heads, kv_heads) = (query.shape[1], key.shape[1]);
        let length = self.tokens.len();
        let turn = |x: &Tensor, heads: usize| match rope {
            Some(rope) => x.map_rows(|index, x| rotated(x, rope, index / heads, length)),
            None => x.clone(),
        };
        let (query, key) = (turn(query, heads), turn(key, kv_heads));
        let [keys, values] = [&key, value].map(|tensor| tensor.rows().collect::<Vec<_>>());
        let sinks = sinks.map(|sinks| self.weight(sinks).data.clone());
        let mixed = query.map_rows(|index, query| {
            let (at, head) = (index / heads, index % heads);
            let first = window.map_or(0, |window| match mask {
                AttentionMask::Chunked => at - at % window,
                AttentionMask::Causal | AttentionMask::Bidirectional => (at + 1).saturating_sub(window),
            });
            let end = match mask {
                AttentionMask::Causal | AttentionMask::Chunked => at + 1,
                AttentionMask::Bidirectional => window.map_or(length, |window| length.min(at + window)),
            };
            let row = |position: usize| position * kv_heads + head / (heads / kv_heads);
            let score = |position| {
                let score = dot(query, keys[row(position)]) * scale;
                soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            let mut scores = (first..end).map(score).collect::<Vec<_>>();
            scores.extend(sinks.iter().map(|sinks| sinks[head]));
            let weights = softmax(&scores);
            let width = value.width();
            let sum = |element| {
                (first..end).zip(&weights).map(|(at, weight)| weight * values[row(at)][element]).sum()
            };
            (0..width).map(sum).collect()
        });
        self.join_heads(&mixed)
    }

    fn project(x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let mut out = weight.chunks_exact(x.len()).map(|row| dot(row, x)).collect::<Vec<_>>();
        if let Some(bias) = bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }
}

impl Ops for Naive<'_> {
    type Value = Tensor;
    type Routing = Routing;
    type Error = mlxcel_core::Error;

    fn embed(&mut self, table: WeightId) -> Result<Tensor> {
        let table = self.weight(table);
        let rows = self.tokens.iter().flat_map(|&token| table.rows().nth(token as usize).unwrap().to_vec());
        Ok(Tensor::new([self.tokens.len(), table.width()], rows.collect()))
    }

    fn embed_within(&mut self, table: WeightId, rows: usize) -> Result<Tensor> {
        let table = self.weight(table);
        let row = |token: u32| if (token as usize) < rows { token as usize } else { 0 };
        let rows = self.tokens.iter().flat_map(|&token| table.rows().nth(row(token)).unwrap().to_vec());
        Ok(Tensor::new([self.tokens.len(), table.width()], rows.collect()))
    }

    fn embed_positions(&mut self, table: WeightId, offset: usize) -> Result<Tensor> {
        let table = self.weight(table);
        let rows = (0..self.tokens.len()).flat_map(|at| table.rows().nth(at + offset).unwrap().to_vec());
        Ok(Tensor::new([self.tokens.len(), table.width()], rows.collect()))
    }

    fn embed_types(&mut self, table: WeightId) -> Result<Tensor> {
        let table = self.weight(table);
        let of = |at: usize| self.types.get(at).copied().unwrap_or_default();
        let rows = (0..self.tokens.len()).flat_map(|at| table.rows().nth(of(at).into()).unwrap().to_vec());
        Ok(Tensor::new([self.tokens.len(), table.width()], rows.collect()))
    }

    fn vector(&mut self, weight: WeightId) -> Result<Tensor> {
        let weight = self.weight(weight);
        Ok(Tensor { shape: vec![1, weight.data.len()], data: weight.data.clone() })
    }

    fn linear(&mut self, x: &Tensor, linear: &Linear) -> Result<Tensor> {
        let &Linear { weight, bias, inputs, outputs } = linear;
        let weight = self.weight(weight);
        assert_eq!(weight.shape, [outputs, inputs]);
        let bias = bias.map(|bias| self.weight(bias));
        Ok(x.map_rows(|_, x| Self::project(x, &weight.data, bias.map(|bias| &bias.data[..]))))
    }

    fn head_linear(&mut self, x: &Tensor, linear: &HeadLinear) -> Result<Tensor> {
        let &HeadLinear { weight, transposed, heads, inputs, outputs } = linear;
        let weight = self.weight(weight);
        let (rows, columns) = if transposed { (inputs, outputs) } else { (outputs, inputs) };
        assert_eq!(weight.shape, [heads, rows, columns]);
        Ok(x.map_rows(|index, x| {
            let matrix = &weight.data[index % heads * inputs * outputs..][..inputs * outputs];
            if !transposed {
                return Self::project(x, matrix, None);
            }
            let column = |column| matrix.iter().skip(column).step_by(outputs).copied().collect::<Vec<_>>();
            (0..outputs).map(|output| dot(&column(output), x)).collect()
        }))
    }

    fn norm(&mut self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        let &Norm { kind, weight, bias, epsilon, offset, width } = norm;
        assert_eq!(x.width(), width);
        let (weight, bias) = (weight.map(|id| self.weight(id)), bias.map(|id| self.weight(id)));
        let part =
            |tensor: &Tensor, index: usize, at: usize| tensor.data[(index * width + at) % tensor.data.len()];
        Ok(x.map_rows(|index, x| {
            let mean = match kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64,
            };
            let spread = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / width as f64;
            let scale = (spread + f64::from(epsilon)).sqrt().recip();
            let normed = |(at, &x): (usize, &f32)| {
                let factor = weight.map_or(1.0, |weight| offset + part(weight, index, at));
                ((f64::from(x) - mean) * scale) as f32 * factor
                    + bias.map_or(0.0, |bias| part(bias, index, at))
            };
            x.iter().enumerate().map(normed).collect()
        }))
    }

    fn unit_norm(&mut self, x: &Tensor, epsilon: f32) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| {
            let scale = (dot(x, x) + epsilon).sqrt().recip();
            x.iter().map(|x| x * scale).collect()
        }))
    }

    fn activate(&mut self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        Ok(x.map(|x| activated(x, activation)))
    }

    fn exp(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map(f32::exp))
    }

    fn exp_below(&mut self, x: &Tensor, epsilon: &Tensor) -> Result<Tensor> {
        let epsilon = epsilon.data[0];
        Ok(x.map(|x| if x > 0.0 { 0.0 } else { x.min(epsilon).exp_m1() - x }))
    }

    fn clamp(&mut self, x: &Tensor, least: f32, most: f32) -> Result<Tensor> {
        Ok(x.map(|x| x.clamp(least, most)))
    }

    fn soft_cap(&mut self, x: &Tensor, cap: f32) -> Result<Tensor> {
        Ok(x.map(|x| cap * (x / cap).tanh()))
    }

    fn scale(&mut self, x: &Tensor, factor: f32) -> Result<Tensor> {
        Ok(x.map(|x| x * factor))
    }

    fn offset(&mut self, x: &Tensor, summand: f32) -> Result<Tensor> {
        Ok(x.map(|x| x + summand))
    }

    fn add(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(a.zip(b, |a, b| a + b))
    }

    fn multiply(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(a.zip(b, |a, b| a * b))
    }

    fn divide(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(a.zip(b, |a, b| a / b))
    }

    fn sum(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| vec![x.iter().sum()]))
    }

    fn mean(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| vec![x.iter().sum::<f32>() / x.len() as f32]))
    }

    fn sqrt(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map(f32::sqrt))
    }

    fn softmax(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| softmax(x)))
    }

    fn split_heads(&mut self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let [tokens, width] = x.shape[..] else { panic!("{:?}", x.shape) };
        Ok(Tensor { shape: vec![tokens, heads, width / heads], data: x.data.clone() })
    }

    fn join_heads(&mut self, x: &Tensor) -> Result<Tensor> {
        let [tokens, heads, width] = x.shape[..] else { panic!("{:?}", x.shape) };
        Ok(Tensor { shape: vec![tokens, heads * width], data: x.data.clone() })
    }

    fn slice(&mut self, x: &Tensor, start: usize, end: usize) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| x[start..end].to_vec()))
    }

    fn concatenate(&mut self, values: &[Tensor]) -> Result<Tensor> {
        let (first, others) = values.split_first().unwrap();
        Ok(first.map_rows(|index, x| {
            let others = others.iter().map(|other| other.rows().nth(index).unwrap());
            std::iter::once(x).chain(others).flatten().copied().collect()
        }))
    }

    fn deinterleave(&mut self, x: &Tensor, rotary_dim: usize) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| {
            let mut out = x.to_vec();
            for pair in 0..rotary_dim / 2 {
                (out[pair], out[pair + rotary_dim / 2]) = (x[2 * pair], x[2 * pair + 1]);
            }
            out
        }))
    }

    fn rotate(&mut self, x: &Tensor, rope: &Rope) -> Result<Tensor> {
        let (heads, length) = (x.shape[1], self.tokens.len());
        Ok(x.map_rows(|index, x| rotated(x, rope, index / heads, length)))
    }

    fn scale_by_position(&mut self, x: &Tensor, scale: &PositionScale) -> Result<Tensor> {
        let &PositionScale { beta, original_context, offset } = scale;
        let heads = x.shape[1];
        Ok(x.map_rows(|index, x| {
            let factor = 1.0 + beta * ((1 + (index / heads + offset) / original_context) as f32).ln();
            x.iter().map(|x| x * factor).collect()
        }))
    }

    fn select(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn attention(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        core: &AttentionCore,
        _: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Tensor> {
        self.kept.insert(slot, [key.clone(), value.clone()]);
        self.attend(query, key, value, core)
    }

    fn shared_attention(
        &mut self,
        query: &Tensor,
        core: &AttentionCore,
        _: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Tensor> {
        let [key, value] = self.kept[&slot].clone();
        self.attend(query, &key, &value, core)
    }

    fn bidirectional_attention(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        core: &AttentionCore,
        _: Option<&Linear>,
    ) -> Result<Tensor> {
        self.attend(query, key, value, core)
    }

    fn latent_attention(
        &mut self,
        query: &Tensor,
        entry: &Tensor,
        latent: &LatentAttention,
        _: StateSlot,
        selected: Option<StateSlot>,
    ) -> Result<Tensor> {
        let &LatentAttention { heads, rank, scale, ref rope, .. } = latent;
        let length = self.tokens.len();
        let turn = |x: &Tensor, heads: usize| match rope {
            Some(rope) => x.map_rows(|index, x| {
                [&x[..rank], &rotated(&x[rank..], rope, index / heads, length)].concat()
            }),
            None => x.clone(),
        };
        let (query, entry) = (turn(query, heads), turn(entry, 1));
        let entries = entry.rows().collect::<Vec<_>>();
        Ok(query.map_rows(|index, query| {
            let seen = match selected {
                Some(slot) => self.selected[&slot][index / heads].iter().map(|&at| entries[at]).collect(),
                None => entries[..=index / heads].to_vec(),
            };
            let scores = seen.iter().map(|entry| dot(query, entry) * scale).collect::<Vec<_>>();
            let weights = softmax(&scores);
            let sum = |element: usize| {
                seen.iter().zip(&weights).map(|(entry, weight)| weight * entry[element]).sum()
            };
            (0..rank).map(sum).collect()
        }))
    }

    fn select_positions(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        weights: &Tensor,
        count: usize,
        slot: StateSlot,
    ) -> Result<()> {
        let (heads, queries) = (query.shape[1], query.rows().collect::<Vec<_>>());
        let keys = key.rows().collect::<Vec<_>>();
        let of = |(token, weights): (usize, &[f32])| {
            let score = |key: &&[f32]| {
                let products = queries[token * heads..][..heads].iter().map(|query| dot(query, key).max(0.0));
                products.zip(weights).map(|(product, weight)| product * weight).sum()
            };
            largest(&keys[..=token].iter().map(score).collect::<Vec<f32>>(), count)
        };
        self.selected.insert(slot, weights.rows().enumerate().map(of).collect());
        Ok(())
    }

    fn convolve(&mut self, x: &Tensor, convolution: &Convolution, _: StateSlot) -> Result<Tensor> {
        let &Convolution { weight, bias, channels, taps, activation } = convolution;
        let weight = self.weight(weight);
        assert_eq!(weight.shape, [channels, taps]);
        let bias = bias.map(|bias| self.weight(bias));
        let rows = x.rows().collect::<Vec<_>>();
        Ok(x.map_rows(|index, _| {
            let channel = |channel: usize| {
                let tap = |tap: usize| match (index + tap + 1).checked_sub(taps) {
                    Some(at) => weight.data[channel * taps + tap] * rows[at][channel],
                    None => 0.0,
                };
                let sum = (0..taps).map(tap).sum::<f32>() + bias.map_or(0.0, |bias| bias.data[channel]);
                activation.map_or(sum, |activation| activated(sum, activation))
            };
            (0..channels).map(channel).collect()
        }))
    }

    fn delta_rule(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
        _: StateSlot,
    ) -> Result<Tensor> {
        let [tokens, key_heads, key_dim] = query.shape[..] else { panic!() };
        let [_, heads, value_dim] = value.shape[..] else { panic!() };
        let [queries, keys, values] = [query, key, value].map(|tensor| tensor.rows().collect::<Vec<_>>());
        let mut states = vec![vec![0.0f32; key_dim * value_dim]; heads];
        let mut out = Vec::with_capacity(tokens * heads * value_dim);
        for token in 0..tokens {
            for (head, state) in states.iter_mut().enumerate() {
                let at = token * heads + head;
                let shared = token * key_heads + head / (heads / key_heads);
                let (query, key) = (queries[shared], keys[shared]);
                // One for all rows of the state, or one for each.
                let channels = decay.data.len() / (tokens * heads);
                for (row, state) in state.chunks_exact_mut(value_dim).enumerate() {
                    let factor = decay.data[at * channels + row % channels].exp();
                    state.iter_mut().for_each(|state| *state *= factor);
                }
                let read = |state: &[f32], by: &[f32], element: usize| {
                    by.iter().enumerate().map(|(k, by)| by * state[k * value_dim + element]).sum::<f32>()
                };
                for element in 0..value_dim {
                    let change = beta.data[at] * (values[at][element] - read(state, key, element));
                    (0..key_dim).for_each(|k| state[k * value_dim + element] += key[k] * change);
                    out.push(read(state, query, element));
                }
            }
        }
        Ok(Tensor::new([tokens, heads, value_dim], out))
    }

    fn previous(&mut self, x: &Tensor, _: StateSlot) -> Result<Tensor> {
        let rows = x.rows().collect::<Vec<_>>();
        Ok(x.map_rows(|index, x| match index.checked_sub(1) {
            Some(before) => rows[before].to_vec(),
            None => vec![0.0; x.len()],
        }))
    }

    fn generalized_delta_rule(
        &mut self,
        operands: &DeltaRuleOperands<Tensor>,
        _: StateSlot,
    ) -> Result<Tensor> {
        let DeltaRuleOperands { query, key, value, decay, removal, rewrite } = operands;
        let [tokens, heads, value_dim] = value.shape[..] else { panic!() };
        let key_dim = key.width();
        let mut states = vec![vec![0.0f32; key_dim * value_dim]; heads];
        let mut out = Vec::with_capacity(tokens * heads * value_dim);
        for at in 0..tokens * heads {
            let state = &mut states[at % heads];
            let of = |tensor: &Tensor, k: usize| tensor.data[at * key_dim + k];
            for element in 0..value_dim {
                let value = value.data[at * value_dim + element];
                let column = |k: usize| k * value_dim + element;
                let removed: f32 = (0..key_dim).map(|k| of(removal, k) * state[column(k)]).sum();
                for k in 0..key_dim {
                    let kept = of(decay, k).exp() * state[column(k)];
                    state[column(k)] = kept + of(rewrite, k) * removed + of(key, k) * value;
                }
                out.push((0..key_dim).map(|k| of(query, k) * state[column(k)]).sum());
            }
        }
        Ok(Tensor::new([tokens, heads, value_dim], out))
    }

    fn state_space(
        &mut self,
        x: &Tensor,
        dt: &Tensor,
        rate: &Tensor,
        input: &Tensor,
        output: &Tensor,
        _: StateSlot,
    ) -> Result<Tensor> {
        let [tokens, heads, width] = x.shape[..] else { panic!() };
        let [_, groups, size] = input.shape[..] else { panic!() };
        let [xs, inputs, outputs] = [x, input, output].map(|tensor| tensor.rows().collect::<Vec<_>>());
        let mut states = vec![vec![0.0f32; width * size]; heads];
        let mut out = Vec::with_capacity(tokens * heads * width);
        for token in 0..tokens {
            for (head, state) in states.iter_mut().enumerate() {
                let at = token * heads + head;
                let group = token * groups + head / (heads / groups);
                let step = dt.data[at];
                let per_head = rate.data.len() / heads;
                for (element, state) in state.chunks_exact_mut(size).enumerate() {
                    for (place, (state, b)) in state.iter_mut().zip(inputs[group]).enumerate() {
                        let factor = (step * rate.data[head * per_head + place % per_head]).exp();
                        *state = factor * *state + step * xs[at][element] * b;
                    }
                    out.push(dot(state, outputs[group]));
                }
            }
        }
        Ok(Tensor::new([tokens, heads, width], out))
    }

    fn keep_groups(&mut self, scores: &Tensor, groups: usize, kept: usize) -> Result<Tensor> {
        let size = scores.width() / groups;
        Ok(scores.map_rows(|_, scores| {
            let score = |group: &[f32]| {
                let mut sorted = group.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted[0] + sorted[1]
            };
            let of_groups = scores.chunks_exact(size).map(score).collect::<Vec<_>>();
            let best = largest(&of_groups, kept);
            let keep =
                |(index, &score)| if best.contains(&(index / size)) { score } else { f32::NEG_INFINITY };
            scores.iter().enumerate().map(keep).collect()
        }))
    }

    fn sparse_mixer(&mut self, logits: &Tensor, tolerance: f32) -> Result<(Tensor, Tensor)> {
        let rows = logits.rows().map(|logits| {
            let best = largest(logits, 2);
            let weight = |place: usize| {
                let most = logits[best[place]];
                let close = |(index, logit): &(usize, &f32)| {
                    let far = (most - **logit) / logit.abs().max(most) > tolerance;
                    !best[..place].contains(index) && !far
                };
                let powers = logits.iter().enumerate().filter(close).map(|(_, logit)| (logit - most).exp());
                powers.sum::<f32>().recip()
            };
            ([best[0] as f32, best[1] as f32], [weight(0), weight(1)])
        });
        let (indices, weights): (Vec<_>, Vec<_>) = rows.unzip();
        let tokens = logits.shape[0];
        Ok((Tensor::new([tokens, 2], indices.concat()), Tensor::new([tokens, 2], weights.concat())))
    }

    fn top(&mut self, x: &Tensor, count: usize) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| largest(x, count).into_iter().map(|index| index as f32).collect()))
    }

    fn at_most(&mut self, indices: &Tensor, most: usize) -> Result<Tensor> {
        Ok(indices.map_rows(|_, indices| indices.iter().map(|index| index.min(most as f32)).collect()))
    }

    fn pick(&mut self, x: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let rows = x.rows().collect::<Vec<_>>();
        Ok(indices.map_rows(|row, indices| indices.iter().map(|&index| rows[row][index as usize]).collect()))
    }

    fn dispatch(&mut self, x: &Tensor, chosen: &Tensor, experts: usize) -> Result<(Tensor, Routing)> {
        let routing =
            Routing { experts: chosen.data.iter().map(|&x| x as usize).collect(), chosen: chosen.width() };
        assert!(routing.experts.iter().all(|&expert| expert < experts));
        let copies =
            x.rows().flat_map(|row| std::iter::repeat_n(row, routing.chosen)).flatten().copied().collect();
        Ok((Tensor::new([routing.experts.len(), x.width()], copies), routing))
    }

    fn expert_linear(&mut self, x: &Tensor, routing: &Routing, linear: &Linear) -> Result<Tensor> {
        let &Linear { weight, bias, inputs, outputs } = linear;
        let weight = self.weight(weight);
        assert_eq!(weight.shape[1..], [outputs, inputs]);
        let bias = bias.map(|bias| self.weight(bias));
        Ok(x.map_rows(|row, x| {
            let expert = routing.experts[row];
            let matrix = &weight.data[expert * inputs * outputs..][..inputs * outputs];
            Self::project(x, matrix, bias.map(|bias| &bias.data[expert * outputs..][..outputs]))
        }))
    }

    fn weigh(&mut self, x: &Tensor, _: &Routing, weights: &Tensor) -> Result<Tensor> {
        Ok(x.map_rows(|row, x| x.iter().map(|x| x * weights.data[row]).collect()))
    }

    fn combine(&mut self, x: &Tensor, routing: &Routing, weights: Option<&Tensor>) -> Result<Tensor> {
        let rows = x.rows().collect::<Vec<_>>();
        let ones = Tensor::new([rows.len() / routing.chosen, routing.chosen], vec![1.0; rows.len()]);
        Ok(weights.unwrap_or(&ones).map_rows(|token, weights| {
            let own = &rows[token * routing.chosen..][..routing.chosen];
            let sum =
                |element: usize| own.iter().zip(weights).map(|(row, weight)| weight * row[element]).sum();
            (0..x.width()).map(sum).collect()
        }))
    }
}

/// The indices of the `count` largest, largest first; ties go to the lowest.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut indices = (0..values.len()).collect::<Vec<_>>();
    indices.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    indices.truncate(count);
    indices
}
