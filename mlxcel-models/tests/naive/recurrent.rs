//! Recurrences over the tokens of a text, token by token.

use mlxcel_models::Convolution;
use mlxcel_models::walk::DeltaRuleOperands;

use super::Naive;
use super::tensor::{Tensor, activated, dot};

impl Naive<'_> {
    /// A causal convolution of each channel.
    pub(super) fn convolved(&self, x: &Tensor, convolution: &Convolution) -> Tensor {
        let &Convolution { weight, bias, channels, taps, activation } = convolution;
        let weight = self.weight(weight);
        assert_eq!(weight.shape, [channels, taps]);
        let bias = bias.map(|bias| self.weight(bias));
        let rows = x.rows().collect::<Vec<_>>();
        x.map_rows(|index, _| {
            let channel = |channel: usize| {
                let tap = |tap: usize| match (index + tap + 1).checked_sub(taps) {
                    Some(at) => weight.data[channel * taps + tap] * rows[at][channel],
                    None => 0.0,
                };
                let sum = (0..taps).map(tap).sum::<f32>() + bias.map_or(0.0, |bias| bias.data[channel]);
                activation.map_or(sum, |activation| activated(sum, activation))
            };
            (0..channels).map(channel).collect()
        })
    }
}

pub(super) fn delta_rule([query, key, value, decay, beta]: [&Tensor; 5]) -> Tensor {
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
    Tensor::new([tokens, heads, value_dim], out)
}

pub(super) fn generalized_delta_rule(operands: &DeltaRuleOperands<Tensor>) -> Tensor {
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
    Tensor::new([tokens, heads, value_dim], out)
}

pub(super) fn state_space([x, dt, rate, input, output]: [&Tensor; 5]) -> Tensor {
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
    Tensor::new([tokens, heads, width], out)
}
