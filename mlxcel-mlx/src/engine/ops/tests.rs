//! Operations on states compared with their formulas, and other operations that MLX does not have directly.

use std::collections::HashMap;

use mlxcel_models::{
    Arrangement, Block, Decay, DecayScope, Decoder, DeltaRule, ElementType, Embedding, GeneralizedDeltaRule,
    Head, HeadSharing, Layer, Mixer, Operation, ShiftedProjection, ShortConvolution, StateSpace,
    StateSpaceScales, WeightRef, WeightTable,
};

use super::*;
use crate::engine::compute::Compute;
use crate::engine::network::Numerics;
use crate::engine::weights::Weights;

fn floats(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

/// A table with a single weight, used for every role.
fn table() -> (WeightTable, WeightId) {
    let mut weights = WeightTable::new();
    let id = weights.add(WeightRef::new("weight", ElementType::F32, [3, 4]));
    (weights, id)
}

/// A decoder whose only mixer is `mixer`.
fn network(mixer: Mixer, weight: Array) -> Network {
    let (weights, id) = table();
    let projection = Linear { weight: id, bias: None, inputs: 4, outputs: 3 };
    let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, epsilon: 1e-5, offset: 0.0, width: 4 };
    let operation = Operation::Mixer(mixer);
    let block = Block {
        norm_before: None,
        input_scale: 1.0,
        operation,
        norm_after: None,
        laurel: None,
        residual_scale: 1.0,
        norm_output: None,
        deferred: false,
        connection: None,
    };
    let decoder = Decoder {
        model_type: "hand-made".into(),
        notes: Vec::new(),
        vocabulary_size: 3,
        hidden_size: 4,
        context_length: 100,
        element_type: ElementType::F32,
        weights,
        embedding: Embedding {
            weight: id,
            scale: 1.0,
            positions: None,
            types: None,
            norm: None,
            projection: None,
        },
        input_states: None,
        layer_embeddings: None,
        streams: None,
        layers: vec![Layer {
            blocks: vec![block],
            arrangement: Arrangement::Sequential,
            altup: None,
            scale: None,
        }],
        norm: Some(norm),
        head: Some(Head { projection, tied: true, scale: 1.0, soft_cap: None }),
        head_tokens: None,
        output_states: None,
        gguf_architecture: None,
    };
    let numerics = Numerics { activation: DType::F32, kv: DType::F32 };
    Network::new(decoder, Weights::of(vec![weight]), Compute::new(None), numerics, 100).unwrap()
}

/// The result of `operation` for the rows of `spans`, with their states after it.
fn pass(
    network: &Network,
    spans: &[Span],
    states: &[Option<&States>],
    operation: impl FnOnce(&mut PassOps<'_>) -> Result<Array>,
) -> (Vec<f32>, Vec<States>) {
    let tokens = Array::from_slice(&[0u32], &[1]).unwrap();
    let mut ops = PassOps {
        network,
        inputs: Inputs { tokens: &tokens, types: None, states: None },
        spans,
        states,
        filled: spans.iter().map(|_| States::default()).collect(),
        wanted: Wanted::All,
        slots: RowSlots::default(),
        rotations: Vec::new(),
        masks: Masks::default(),
        triangles: Triangles::default(),
        visible: HashMap::new(),
        selected: HashMap::new(),
    };
    let output = operation(&mut ops).unwrap();
    (output.to_vec().unwrap(), ops.filled)
}

fn span(start: usize, position: usize, count: usize) -> Span {
    Span { start, count, position, length: position + count, adapter: None }
}

const SLOT: StateSlot = StateSlot { group: 0, layer: 0 };

/// Has `run(ops, first, last)` compute tokens `first..last` in chunks of several sizes, some of them batched
/// with another sequence; all must return `expected`.
fn in_any_chunks(
    network: &Network,
    count: usize,
    expected: &[f64],
    run: impl Fn(&mut PassOps<'_>, &[(usize, usize)]) -> Result<Array>,
) {
    let width = expected.len() / count;
    let close = |found: &[f32], first: usize, name: &str| {
        let expected = &expected[first * width..][..found.len()];
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            assert!(error < 2e-5 * expected.abs().max(1.0), "{name}: {index}: {found}, not {expected}");
        }
    };
    for chunk in [1, 3, 33, count] {
        let (mut states, mut first) = (None::<States>, 0);
        while first < count {
            let last = count.min(first + chunk);
            let spans = [span(0, first, last - first)];
            let (found, filled) = pass(network, &spans, &[states.as_ref()], |ops| run(ops, &[(first, last)]));
            assert_eq!(found.len(), (last - first) * width);
            close(&found, first, &format!("chunks of {chunk}"));
            (states, first) = (filled.into_iter().next(), last);
        }
    }
    // Two sequences of the same tokens, one ahead of the other; the second restarts over old states.
    let (_, ahead) = pass(network, &[span(0, 0, 5)], &[None], |ops| run(ops, &[(0, 5)]));
    let spans = [span(0, 5, 2), span(2, 0, 4)];
    let states = [ahead.first(), ahead.first()];
    let (found, _) = pass(network, &spans, &states, |ops| run(ops, &[(5, 7), (0, 4)]));
    close(&found[..2 * width], 5, "the first of two");
    close(&found[2 * width..], 0, "the second of two");
}

/// The tokens of `ranges` in `values` (`[tokens, shape…]`), concatenated.
fn tokens_of(values: &[f32], shape: &[usize], ranges: &[(usize, usize)]) -> Array {
    let width = shape.iter().product::<usize>();
    let of = |&(first, last): &(usize, usize)| values[first * width..last * width].to_vec();
    let own: Vec<f32> = ranges.iter().flat_map(of).collect();
    Array::from_slice(&own, &[&[own.len() / width], shape].concat()).unwrap()
}

fn convolution(channels: usize, taps: usize, activation: Option<Activation>) -> Convolution {
    Convolution { weight: table().1, bias: None, channels, taps, activation }
}

fn linear() -> Linear {
    Linear { weight: table().1, bias: None, inputs: 4, outputs: 3 }
}

#[test]
fn convolutions_use_earlier_inputs() {
    let (count, channels) = (40, 3);
    let x = floats(count * channels, 1);
    // One tap sees no earlier inputs.
    for taps in [1, 2, 4] {
        let own = convolution(channels, taps, Some(Activation::Silu));
        let weight = floats(channels * taps, 5);
        let mut expected = Vec::new();
        for t in 0..count {
            expected.extend((0..channels).map(|c| {
                let tap = |k: usize| match (t + k).checked_sub(taps - 1) {
                    Some(at) => f64::from(weight[c * taps + k]) * f64::from(x[at * channels + c]),
                    None => 0.0,
                };
                let sum: f64 = (0..taps).map(tap).sum();
                sum / (1.0 + (-sum).exp())
            }));
        }
        let mixer =
            Mixer::ShortConvolution(ShortConvolution { input: linear(), convolution: own, output: linear() });
        let network = network(mixer, Array::from_slice(&weight, &[channels, taps]).unwrap());
        in_any_chunks(&network, count, &expected, |ops, ranges| {
            ops.convolve(&tokens_of(&x, &[channels], ranges), &own, SLOT)
        });
    }
}

#[test]
fn the_delta_rule_matches_its_recurrence() {
    let (count, key_heads, value_heads, key_dim, value_dim) = (70, 2, 4, 5, 3);
    let query = floats(count * key_heads * key_dim, 3);
    // Of length one, as in the walk.
    let mut key = floats(count * key_heads * key_dim, 11);
    for key in key.chunks_mut(key_dim) {
        let length = key.iter().map(|k| k * k).sum::<f32>().sqrt();
        key.iter_mut().for_each(|k| *k /= length);
    }
    let value = floats(count * value_heads * value_dim, 7);
    let decay: Vec<f32> = floats(count * value_heads, 2).iter().map(|g| -(g + 1.01) * 0.4).collect();
    let beta: Vec<f32> = floats(count * value_heads, 9).iter().map(|b| 0.5 + 0.45 * b).collect();
    let mut expected = Vec::new();
    let mut states = vec![vec![0f64; key_dim * value_dim]; value_heads];
    for t in 0..count {
        for (head, state) in states.iter_mut().enumerate() {
            let shared = (t * key_heads + head / (value_heads / key_heads)) * key_dim;
            let (q, k) = (&query[shared..][..key_dim], &key[shared..][..key_dim]);
            let scalar = t * value_heads + head;
            let kept = f64::from(decay[scalar]).exp();
            state.iter_mut().for_each(|s| *s *= kept);
            for j in 0..value_dim {
                let seen: f64 = (0..key_dim).map(|i| f64::from(k[i]) * state[i * value_dim + j]).sum();
                let change = f64::from(beta[scalar]) * (f64::from(value[scalar * value_dim + j]) - seen);
                (0..key_dim).for_each(|i| state[i * value_dim + j] += f64::from(k[i]) * change);
            }
            expected.extend(
                (0..value_dim)
                    .map(|j| (0..key_dim).map(|i| f64::from(q[i]) * state[i * value_dim + j]).sum::<f64>()),
            );
        }
    }
    let none = || table().1;
    let mixer = Mixer::DeltaRule(DeltaRule {
        key_heads,
        value_heads,
        sharing: HeadSharing::Neighbours,
        key_dim,
        value_dim,
        query: linear(),
        key: linear(),
        value: linear(),
        gate: linear().into(),
        gate_activation: Activation::Silu,
        beta: linear(),
        beta_scale: 1.0,
        alpha: linear().into(),
        convolution: convolution(22, 4, None),
        alpha_bias: none(),
        decay: none(),
        decay_form: Decay::Softplus,
        decay_scope: DecayScope::Head,
        norm: Norm { kind: NormKind::Rms, weight: None, bias: None, epsilon: 1e-6, offset: 0.0, width: 3 },
        output: linear(),
    });
    let network = network(mixer, Array::from_slice(&[0f32], &[1]).unwrap());
    in_any_chunks(&network, count, &expected, |ops, ranges| {
        // The convolution has the first slot.
        let slot = StateSlot { group: 1, layer: 0 };
        let key_shape = [key_heads, key_dim];
        ops.delta_rule(
            &tokens_of(&query, &key_shape, ranges),
            &tokens_of(&key, &key_shape, ranges),
            &tokens_of(&value, &[value_heads, value_dim], ranges),
            &tokens_of(&decay, &[value_heads], ranges),
            &tokens_of(&beta, &[value_heads], ranges),
            slot,
        )
    });
}

#[test]
fn the_generalised_delta_rule_matches_its_recurrence() {
    let (count, heads, width) = (70, 2, 5);
    let [query, key, value] = [3, 5, 7].map(|seed| floats(count * heads * width, seed));
    // Of length one, and written back in part, as in the walk.
    let mut removal = floats(count * heads * width, 11);
    for removal in removal.chunks_mut(width) {
        let length = removal.iter().map(|x| x * x).sum::<f32>().sqrt();
        removal.iter_mut().for_each(|x| *x /= -length);
    }
    let rates = floats(count * heads * width, 9).into_iter().map(|rate| 0.5 + 0.45 * rate);
    let rewrite: Vec<f32> = removal.iter().zip(rates).map(|(x, rate)| -x * rate).collect();
    let decay: Vec<f32> = floats(count * heads * width, 2).iter().map(|g| -(g + 1.01) * 0.4).collect();
    let mut expected = Vec::new();
    let mut states = vec![vec![0f64; width * width]; heads];
    for at in 0..count * heads {
        let state = &mut states[at % heads];
        let of = |x: &[f32], i: usize| f64::from(x[at * width + i]);
        for j in 0..width {
            let removed: f64 = (0..width).map(|i| of(&removal, i) * state[i * width + j]).sum();
            for i in 0..width {
                let kept = of(&decay, i).exp() * state[i * width + j];
                state[i * width + j] = kept + of(&rewrite, i) * removed + of(&key, i) * of(&value, j);
            }
            expected.push((0..width).map(|i| of(&query, i) * state[i * width + j]).sum::<f64>());
        }
    }
    let shifted = || ShiftedProjection { mix: table().1, projection: linear().into() };
    let mixer = Mixer::GeneralizedDeltaRule(GeneralizedDeltaRule {
        width: 4,
        heads,
        head_dim: width,
        query: shifted(),
        key: shifted(),
        value: shifted(),
        value_mix: None,
        decay: shifted(),
        decay_bound: -0.8,
        rate: shifted(),
        gate: shifted(),
        removal_scale: table().1,
        rate_scale: table().1,
        bonus: table().1,
        norm: Norm { kind: NormKind::Layer, weight: None, bias: None, epsilon: 1e-6, offset: 0.0, width },
        output: linear(),
    });
    let network = network(mixer, Array::from_slice(&[0f32], &[1]).unwrap());
    in_any_chunks(&network, count, &expected, |ops, ranges| {
        let of = |x: &[f32]| tokens_of(x, &[heads, width], ranges);
        let operands = DeltaRuleOperands {
            query: of(&query),
            key: of(&key),
            value: of(&value),
            decay: of(&decay),
            removal: of(&removal),
            rewrite: of(&rewrite),
        };
        // What precedes a token has the first slot.
        ops.generalized_delta_rule(&operands, StateSlot { group: 1, layer: 0 })
    });
    let x = floats(count * 4, 1);
    let expected: Vec<f64> =
        [&[0.0; 4][..], &x[..(count - 1) * 4]].concat().into_iter().map(f64::from).collect();
    in_any_chunks(&network, count, &expected, |ops, ranges| ops.previous(&tokens_of(&x, &[4], ranges), SLOT));
}

#[test]
fn the_state_space_scan_matches_its_recurrence() {
    let (count, heads, head_dim, groups, state_size) = (70, 4, 3, 2, 5);
    let x = floats(count * heads * head_dim, 3);
    let dt: Vec<f32> = floats(count * heads, 4).iter().map(|dt| (dt + 1.05) * 0.5).collect();
    let rate = [-0.1f32, -0.5, -1.0, -8.0];
    let (input, output) = (floats(count * groups * state_size, 5), floats(count * groups * state_size, 8));
    let mut expected = Vec::new();
    let mut states = vec![vec![0f64; head_dim * state_size]; heads];
    for t in 0..count {
        for (head, state) in states.iter_mut().enumerate() {
            let shared = (t * groups + head / (heads / groups)) * state_size;
            let dt = f64::from(dt[t * heads + head]);
            let kept = (dt * f64::from(rate[head])).exp();
            for p in 0..head_dim {
                let x = f64::from(x[(t * heads + head) * head_dim + p]);
                let own = &mut state[p * state_size..][..state_size];
                for (n, s) in own.iter_mut().enumerate() {
                    *s = *s * kept + dt * x * f64::from(input[shared + n]);
                }
                expected.push(own.iter().enumerate().map(|(n, s)| s * f64::from(output[shared + n])).sum());
            }
        }
    }
    let none = || table().1;
    let mixer = Mixer::StateSpace(StateSpace {
        heads,
        head_dim,
        groups,
        state_size,
        gate: linear(),
        input: linear(),
        dt: linear(),
        scales: StateSpaceScales::ONE,
        convolution: convolution(22, 4, None),
        dt_bias: none(),
        dt_limits: (0.0, f32::INFINITY),
        decay: none(),
        skip: none(),
        norm: None,
        norm_first: false,
        output: linear(),
    });
    let network = network(mixer, Array::from_slice(&[0f32], &[1]).unwrap());
    let rate = Array::from_slice(&rate, &[1, heads]).unwrap();
    in_any_chunks(&network, count, &expected, |ops, ranges| {
        ops.state_space(
            &tokens_of(&x, &[heads, head_dim], ranges),
            &tokens_of(&dt, &[heads], ranges),
            &rate,
            &tokens_of(&input, &[groups, state_size], ranges),
            &tokens_of(&output, &[groups, state_size], ranges),
            StateSlot { group: 1, layer: 0 },
        )
    });
}

/// An operation without states, on two tokens.
fn plain(operation: impl FnOnce(&mut PassOps<'_>) -> Result<Array>) -> Vec<f32> {
    let convolution = convolution(1, 2, None);
    let mixer = Mixer::ShortConvolution(ShortConvolution { input: linear(), convolution, output: linear() });
    let network = network(mixer, Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap());
    pass(&network, &[span(0, 7, 2)], &[None], operation).0
}

#[test]
fn adjacent_pairs_become_halves() {
    let x = Array::from_slice(&[0f32, 1.0, 2.0, 3.0, 9.0], &[1, 1, 5]).unwrap();
    assert_eq!(plain(|ops| ops.deinterleave(&x, 4)), [0.0, 2.0, 1.0, 3.0, 9.0]);
    let x = x.slice_axis(-1, 0, 4).unwrap();
    assert_eq!(plain(|ops| ops.deinterleave(&x, 4)), [0.0, 2.0, 1.0, 3.0]);
}

#[test]
fn norms_match_their_formulas() {
    let values = [1f32, 3.0, -2.0, 0.5];
    let x = Array::from_slice(&values, &[1, 2, 2]).unwrap();
    let weight = table().1;
    for (kind, offset, with_weight) in [
        (NormKind::Rms, 0.0, true),
        (NormKind::Rms, 1.0, true),
        (NormKind::Layer, 1.0, true),
        (NormKind::Layer, 0.0, false),
    ] {
        // Per-head factors, and biases like them.
        let id = with_weight.then_some(weight);
        let norm = Norm { kind, weight: id, bias: id, epsilon: 0.01, offset, width: 2 };
        let found = plain(|ops| ops.norm(&x, &norm));
        for (head, pair) in values.chunks(2).enumerate() {
            let mean = if kind == NormKind::Layer { (pair[0] + pair[1]) / 2.0 } else { 0.0 };
            let spread = pair.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 2.0;
            for (i, x) in pair.iter().enumerate() {
                let own = (head * 2 + i + 1) as f32;
                let normed = (x - mean) / (spread + 0.01).sqrt();
                let expected = if with_weight { normed * (own + offset) + own } else { normed };
                let found = found[head * 2 + i];
                assert!((found - expected).abs() < 1e-5, "{kind:?}: {found}, not {expected}");
            }
        }
    }
    let found = plain(|ops| ops.unit_norm(&x, 0.5));
    let expected = values.chunks(2).flat_map(|pair| {
        let length = (pair[0] * pair[0] + pair[1] * pair[1] + 0.5).sqrt();
        [pair[0] / length, pair[1] / length]
    });
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6));
}

#[test]
fn queries_grow_with_their_position() {
    let x = Array::full(&[2, 1, 1], 2.0, DType::F32).unwrap();
    let scale = PositionScale { beta: 0.5, original_context: 4, offset: 0 };
    let found = plain(|ops| ops.scale_by_position(&x, &scale));
    // Positions 7 and 8.
    let expected = [2f32, 3.0].map(|units| 2.0 * (1.0 + 0.5 * units.ln()));
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6));
}

#[test]
fn group_limited_routing_keeps_experts_of_the_best_groups() {
    const NONE: f32 = f32::NEG_INFINITY;
    // Sums of the two best: 0.6, 0.7, 0.9; then three equal ones.
    let scores = [0.5, 0.1, 0.0, 0.4, 0.3, 0.3, 0.0, 0.9, 0.0];
    let scores = Array::from_slice(&[scores, [1.0; 9]].concat(), &[2, 9]).unwrap();
    let kept = plain(|ops| ops.keep_groups(&scores, 3, 2));
    assert_eq!(kept[..9], [NONE, NONE, NONE, 0.4, 0.3, 0.3, 0.0, 0.9, 0.0]);
    assert_eq!(kept[9..], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, NONE, NONE, NONE]);
}

#[test]
fn top_k_ties_go_to_the_lowest_index() {
    let scores = Array::from_slice(&[0.1f32, 0.7, 0.7, 0.9, 0.5, 0.5, 0.5, 0.5], &[2, 4]).unwrap();
    let chosen = |ops: &mut PassOps<'_>| ops.top(&scores, 3);
    assert_eq!(plain(|ops| chosen(ops)?.astype(DType::F32)), [3.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    assert_eq!(
        plain(|ops| {
            let top = chosen(ops)?;
            ops.pick(&scores, &top)
        }),
        [0.9, 0.7, 0.7, 0.5, 0.5, 0.5]
    );
}

#[test]
fn expert_outputs_return_to_their_tokens() {
    // As if expert `e` multiplied by `e + 1`.
    for tokens in [1, 3] {
        let x = floats(tokens * 2, 3);
        let chosen: Vec<u32> = [3, 0, 1, 3, 2, 1][..tokens * 2].to_vec();
        let weights = floats(tokens * 2, 8);
        let [x_array, weights_array] =
            [&x, &weights].map(|values| Array::from_slice(values, &[tokens, 2]).unwrap());
        let chosen_array = Array::from_slice(&chosen, &[tokens, 2]).unwrap();
        let (rows, routing) = experts::dispatch(&x_array, &chosen_array).unwrap();
        let factors = routing.experts().astype(DType::F32).unwrap().add_scalar(1.0).unwrap();
        let results = rows.multiply(&factors.expand_dims(&[1]).unwrap()).unwrap();
        let found =
            experts::combine(&results, &routing, Some(&weights_array)).unwrap().to_vec::<f32>().unwrap();
        for token in 0..tokens {
            let of = |i: usize| weights[token * 2 + i] * (chosen[token * 2 + i] + 1) as f32;
            for i in 0..2 {
                let expected = x[token * 2 + i] * (of(0) + of(1));
                assert!((found[token * 2 + i] - expected).abs() < 1e-5, "{tokens} {token}");
            }
        }
    }
}
