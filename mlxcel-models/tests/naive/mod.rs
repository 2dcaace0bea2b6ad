//! The operations of a walk in plain loops over float32: one sequence, from its start, with the logits of
//! every position.

mod attention;
mod compressed;
mod experts;
mod recurrent;
mod tensor;

use std::collections::HashMap;

use mlxcel_core::Result;
use mlxcel_models::walk::{DeltaRuleOperands, Entries, Hidden, Ops, Walk};
use mlxcel_models::{
    Activation, AttentionCore, Checkpoint, Compressor, Convolution, Decoder, HeadLinear, LatentAttention,
    Linear, Norm, NormKind, PositionScale, Rope, StateSlot, WeightId, WeightRef,
};

use crate::common::values::values;
use experts::Routing;
use tensor::{Tensor, activated, dot, largest, rotated, softmax};

pub(crate) struct Naive<'a> {
    tokens: &'a [u32],
    /// Empty if all are 0.
    types: &'a [u8],
    /// Those that a draft head reads, `[tokens, hidden]`.
    states: &'a [f32],
    weights: Vec<Tensor>,
    /// The keys and values of attention so far, by their slots.
    kept: HashMap<StateSlot, [Tensor; 2]>,
    /// The positions that each token attends to, by the slots of the keys that selected them.
    selected: HashMap<StateSlot, Vec<Vec<usize>>>,
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
    let mut ops = Naive::new(decoder.weights().map(weight).collect::<Result<_>>()?, tokens);
    let walk = Walk::new(decoder);
    let hidden = walk.hidden(decoder, &mut ops)?.wanted;
    walk.logits(&decoder.head.unwrap(), &hidden, &mut ops)
}

/// The hidden states and logits at every position of a draft head, fed `tokens` with these `states`.
#[allow(dead_code, reason = "not every test program has draft heads")]
pub(crate) fn draft_head(
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    tokens: &[u32],
    states: &[f32],
) -> Result<[Tensor; 2]> {
    let mut ops = Naive { states, ..Naive::new(weights(checkpoint, decoder)?, tokens) };
    let walk = Walk::new(decoder);
    let Hidden { wanted, states } = walk.hidden(decoder, &mut ops)?;
    let logits = walk.logits(&decoder.head.unwrap(), &wanted, &mut ops)?;
    let Some(tokens) = &decoder.head_tokens else { return Ok([states.unwrap(), logits]) };
    let spread = logits.map_rows(|_, own| {
        let mut all = vec![f32::NEG_INFINITY; decoder.vocabulary_size];
        tokens.iter().zip(own).for_each(|(&token, &logit)| all[token as usize] = logit);
        all
    });
    Ok([states.unwrap(), spread])
}

/// The hidden states of `tokens` with these `types`, a whole text: those that the decoder returns, if it does.
#[allow(dead_code, reason = "not every test program has encoders")]
pub(crate) fn hidden(
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    tokens: &[u32],
    types: &[u8],
) -> Result<Tensor> {
    let mut ops = Naive { types, ..Naive::new(weights(checkpoint, decoder)?, tokens) };
    let Hidden { wanted, states } = Walk::new(decoder).hidden(decoder, &mut ops)?;
    Ok(states.unwrap_or(wanted))
}

/// The values of all weights.
fn weights(checkpoint: &Checkpoint, decoder: &Decoder) -> Result<Vec<Tensor>> {
    let weight = |weight: &WeightRef| Ok(Tensor::new(weight.shape.clone(), values(checkpoint, weight)?));
    decoder.weights().map(weight).collect()
}

impl<'a> Naive<'a> {
    fn new(weights: Vec<Tensor>, tokens: &'a [u32]) -> Self {
        let (kept, selected) = (HashMap::new(), HashMap::new());
        Self { tokens, types: &[], states: &[], weights, kept, selected }
    }

    /// The row of a table for each token, by its place in the sequence.
    fn rows(&self, table: WeightId, row: impl Fn(usize) -> usize) -> Tensor {
        let (table, tokens) = (self.weight(table), self.tokens.len());
        let rows = (0..tokens).flat_map(|at| table.rows().nth(row(at)).unwrap().to_vec());
        Tensor::new([tokens, table.width()], rows.collect())
    }

    fn weight(&self, id: WeightId) -> &Tensor {
        &self.weights[id.index()]
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
        Ok(self.rows(table, |at| self.tokens[at] as usize))
    }

    fn embed_within(&mut self, table: WeightId, rows: usize) -> Result<Tensor> {
        Ok(self.rows(table, |at| Some(self.tokens[at] as usize).filter(|&token| token < rows).unwrap_or(0)))
    }

    fn embed_positions(&mut self, table: WeightId, offset: usize) -> Result<Tensor> {
        Ok(self.rows(table, |at| at + offset))
    }

    fn embed_types(&mut self, table: WeightId) -> Result<Tensor> {
        Ok(self.rows(table, |at| self.types.get(at).copied().unwrap_or_default().into()))
    }

    fn look_up(&mut self, table: WeightId) -> Result<Tensor> {
        self.embed(table)
    }

    fn input_states(&mut self) -> Result<Tensor> {
        let width = self.states.len() / self.tokens.len();
        Ok(Tensor::new([self.tokens.len(), width], self.states.to_vec()))
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

    fn balance(&mut self, x: &Tensor, epsilon: f32, iterations: usize) -> Result<Tensor> {
        Ok(compressed::balanced(x, epsilon, iterations))
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

    fn interleave(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map_rows(|_, x| (0..x.len()).map(|at| x[at % 2 * (x.len() / 2) + at / 2]).collect()))
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
        Ok(self.attend_latent(query, entry, latent, selected))
    }

    fn compress(&mut self, x: &Tensor, compressor: &Compressor, _: StateSlot) -> Result<Tensor> {
        Ok(self.compressed(x, compressor))
    }

    fn compressed_attention(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        entries: &Entries<Tensor>,
        core: &AttentionCore,
        _: StateSlot,
    ) -> Result<Tensor> {
        Ok(self.attend_compressed(query, key, entries, core))
    }

    fn select_positions(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        weights: &Tensor,
        (count, rate): (usize, usize),
        slot: StateSlot,
    ) -> Result<()> {
        self.selected.insert(slot, attention::best_positions([query, key, weights], count, rate));
        Ok(())
    }

    fn convolve(&mut self, x: &Tensor, convolution: &Convolution, _: StateSlot) -> Result<Tensor> {
        Ok(self.convolved(x, convolution))
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
        Ok(recurrent::delta_rule([query, key, value, decay, beta]))
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
        Ok(recurrent::generalized_delta_rule(operands))
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
        Ok(recurrent::state_space([x, dt, rate, input, output]))
    }

    fn keep_groups(&mut self, scores: &Tensor, groups: usize, kept: usize) -> Result<Tensor> {
        Ok(experts::of_best_groups(scores, groups, kept))
    }

    fn sparse_mixer(&mut self, logits: &Tensor, tolerance: f32) -> Result<(Tensor, Tensor)> {
        Ok(experts::sparse_mixer(logits, tolerance))
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
        Ok(Routing::dispatch(x, chosen, experts))
    }

    fn expert_linear(&mut self, x: &Tensor, routing: &Routing, linear: &Linear) -> Result<Tensor> {
        let &Linear { weight, bias, inputs, outputs } = linear;
        let weight = self.weight(weight);
        assert_eq!(weight.shape[1..], [outputs, inputs]);
        let bias = bias.map(|bias| self.weight(bias));
        Ok(x.map_rows(|row, x| {
            let expert = routing.expert(row);
            let matrix = &weight.data[expert * inputs * outputs..][..inputs * outputs];
            Self::project(x, matrix, bias.map(|bias| &bias.data[expert * outputs..][..outputs]))
        }))
    }

    fn weigh(&mut self, x: &Tensor, _: &Routing, weights: &Tensor) -> Result<Tensor> {
        Ok(x.map_rows(|row, x| x.iter().map(|x| x * weights.data[row]).collect()))
    }

    fn combine(&mut self, x: &Tensor, routing: &Routing, weights: Option<&Tensor>) -> Result<Tensor> {
        Ok(routing.combine(x, weights))
    }
}
