//! Operations compared with their formulas, on MLX and on our kernels.

use super::*;
use crate::kernels::tests::attention::{Shape, attention};

/// Both implementations.
fn means() -> [Compute; 2] {
    [Compute::new(None), Compute::new(Some(Kernels::new(2)))]
}

fn floats(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0 * scale).collect()
}

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "{name}: {index}: {found}, not {expected}");
    }
}

/// The error function, by Simpson's rule over its integral.
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
fn activations_match_their_formulas() {
    let values: Vec<f32> = (-60..=60).map(|i| i as f32 / 10.0).collect();
    let gate = Array::from_slice(&values, &[1, values.len()]).unwrap();
    let up = Array::full(&[1, values.len()], 2.0, DType::F32).unwrap();
    type Formula = fn(f64) -> f64;
    let formulas: [(Activation, Formula); 8] = [
        (Activation::Silu, |x| x / (1.0 + (-x).exp())),
        (Activation::Relu, |x| x.max(0.0)),
        (Activation::ReluSquared, |x| x.max(0.0).powi(2)),
        (Activation::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Activation::Tanh, f64::tanh),
        (Activation::Softplus, |x| x.exp().ln_1p()),
        (Activation::Gelu, |x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))),
        (Activation::GeluTanh, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
    ];
    for (activation, formula) in formulas {
        let expected: Vec<f64> = values.iter().map(|&x| 2.0 * formula(f64::from(x))).collect();
        for ops in means() {
            let found = ops.gated(activation, &gate, &up).unwrap().to_vec().unwrap();
            assert_close(&found, &expected, 2e-6, &format!("{activation} {ops:?}"));
        }
    }
}

#[test]
fn rope_rotates_its_pairs_and_keeps_the_remainder() {
    let (tokens, heads, width, pairs) = (3, 2, 10, 4);
    let values = floats(tokens * heads * width, 1.0);
    let angles: Vec<f32> = (0..tokens * pairs).map(|i| i as f32 * 0.7).collect();
    let table = |f: fn(f32) -> f32| {
        let values: Vec<f32> = angles.iter().map(|&angle| f(angle)).collect();
        Array::from_slice(&values, &[tokens, 1, pairs]).unwrap()
    };
    let (cos, sin) = (table(f32::cos), table(f32::sin));
    let mut expected: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    for (row, head) in expected.chunks_mut(width).enumerate() {
        for pair in 0..pairs {
            let (sin, cos) = f64::from(angles[row / heads * pairs + pair]).sin_cos();
            let (a, b) = (head[pair], head[pair + pairs]);
            (head[pair], head[pair + pairs]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }
    let x = Array::from_slice(&values, &[tokens, heads, width]).unwrap();
    for ops in means() {
        let found = ops.rotate(&x, &cos, &sin).unwrap().to_vec().unwrap();
        assert_close(&found, &expected, 1e-6, &format!("{ops:?}"));
    }
}

/// Attention by its definition.
fn attended(q: &[f32], k: &[f32], v: &[f32], scale: f32, shape: &Shape<'_>) -> Vec<f64> {
    attention(q, k, v, scale, shape).iter().map(|terms| terms.iter().sum()).collect()
}

#[test]
fn queries_attend_to_visible_positions() {
    let (heads, kv_heads, dim, seen) = (4, 2, 8, 7);
    let queries = floats(3 * heads * dim, 2.0);
    let (keys, values) =
        (floats(kv_heads * seen * dim, 1.5), floats(kv_heads * seen * dim + 3, 1.0).split_off(3));
    let of = |values: &[f32]| Array::from_slice(values, &[1, kv_heads, seen, dim]).unwrap();
    let x = Array::from_slice(&queries, &[3, heads, dim]).unwrap();
    let logits = [0.5, -1.0, 2.0, 0.0];
    let sinks = Array::from_slice(&logits, &[heads]).unwrap();
    for order in [Order::All, Order::Causal, Order::Window(2)] {
        // Only a single query may see all.
        let tokens = if order == Order::All { 1 } else { 3 };
        let window = if let Order::Window(window) = order { Some(window) } else { None };
        let x = x.slice_axis(0, 0, tokens).unwrap();
        for (soft_cap, with_sinks) in [(None, false), (Some(1.5), false), (None, true), (Some(1.5), true)] {
            let (group, sinks_of) = (heads / kv_heads, with_sinks.then_some(&logits[..]));
            let shape =
                Shape { tokens, kv_heads, group, dim, length: seen, window, soft_cap, sinks: sinks_of };
            let expected = attended(&queries, &keys, &values, 0.3, &shape);
            let visible = Visible { keys: of(&keys), values: Some(of(&values)), order };
            let scoring = Scoring { scale: 0.3, soft_cap, sinks: with_sinks.then(|| sinks.clone()) };
            for compute in means() {
                let found = compute.attention(&x, &visible, dim, &scoring, &mut Masks::default()).unwrap();
                assert_eq!(found.shape(), [tokens, heads * dim]);
                let name = format!("{order:?} {scoring:?} {compute:?}");
                assert_close(&found.to_vec().unwrap(), &expected, 1e-5, &name);
            }
        }
    }
}

#[test]
fn latent_attention_reads_values_from_keys() {
    let (heads, width, rank, seen) = (3, 10, 6, 5);
    let (queries, entries) = (floats(2 * heads * width, 1.0), floats(seen * width, 1.5));
    let x = Array::from_slice(&queries, &[2, heads, width]).unwrap();
    let keys = Array::from_slice(&entries, &[1, 1, seen, width]).unwrap();
    // With values of the keys' width.
    let shape = Shape { tokens: 2, kv_heads: 1, group: heads, dim: width, length: seen, ..Shape::default() };
    let wide = attended(&queries, &entries, &entries, 0.2, &shape);
    let expected: Vec<f64> = wide.chunks(width).flat_map(|head| head[..rank].to_vec()).collect();
    for compute in means() {
        let visible = Visible { keys: keys.clone(), values: None, order: Order::Causal };
        let scoring = Scoring { scale: 0.2, soft_cap: None, sinks: None };
        let found = compute.attention(&x, &visible, rank, &scoring, &mut Masks::default()).unwrap();
        assert_close(&found.to_vec().unwrap(), &expected, 1e-5, &format!("{compute:?}"));
    }
}

#[test]
fn each_row_uses_its_experts() {
    let (rows, experts, inputs, outputs) = (5, 4, 64, 3);
    let (x, weight) = (floats(rows * inputs, 1.0), floats(experts * outputs * inputs, 0.5));
    let x_array = Array::from_slice(&x, &[rows, inputs]).unwrap();
    let dense = Array::from_slice(&weight, &[experts, outputs, inputs]).unwrap();
    let packed = Packed::quantize(&dense, 32, 4, Mode::Affine).unwrap();
    let narrow = dense.astype(DType::BF16).unwrap();
    let values = |array: &Array| array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    let unpacked = values(&dequantize(&packed, DType::F32).unwrap());
    let narrow_values = values(&narrow);
    let weights = [
        (Weight::Dense(dense), weight),
        (Weight::Dense(narrow), narrow_values),
        (Weight::Packed(packed), unpacked),
    ];
    for (of, sorted) in [([0u32, 0, 1, 3, 3], true), ([3, 0, 1, 0, 3], false)] {
        let chosen = Array::from_slice(&of, &[rows]).unwrap();
        for (kind, (weight, values)) in weights.iter().enumerate() {
            let product = |row: usize, output: usize| -> f64 {
                let matrix = &values[(of[row] as usize * outputs + output) * inputs..][..inputs];
                x[row * inputs..].iter().zip(matrix).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
            };
            let expected: Vec<f64> = (0..rows * outputs).map(|i| product(i / outputs, i % outputs)).collect();
            for compute in means() {
                let found = compute.expert_linear(&x_array, &chosen, sorted, weight).unwrap();
                assert_eq!(found.shape(), [rows, outputs]);
                assert_close(&found.to_vec().unwrap(), &expected, 1e-4, &format!("{kind} {compute:?}"));
            }
        }
    }
}

#[test]
fn each_head_uses_its_matrix() {
    let (tokens, heads, inputs, outputs) = (2, 3, 4, 5);
    let (x, weight) = (floats(tokens * heads * inputs, 1.0), floats(heads * inputs * outputs, 0.5));
    let x_array = Array::from_slice(&x, &[tokens, heads, inputs]).unwrap();
    for transposed in [false, true] {
        let shape = if transposed { [heads, inputs, outputs] } else { [heads, outputs, inputs] };
        let stored = Weight::Dense(Array::from_slice(&weight, &shape).unwrap());
        let factor = |head: usize, output: usize, input: usize| {
            let own = if transposed { input * outputs + output } else { output * inputs + input };
            f64::from(weight[head * inputs * outputs + own])
        };
        let mut expected = Vec::new();
        for (row, own) in x.chunks(inputs).enumerate() {
            expected.extend((0..outputs).map(|output| {
                let products =
                    own.iter().enumerate().map(|(i, &x)| f64::from(x) * factor(row % heads, output, i));
                products.sum::<f64>()
            }));
        }
        for compute in means() {
            let found = compute.head_linear(&x_array, &stored, transposed).unwrap();
            assert_eq!(found.shape(), [tokens, heads, outputs]);
            assert_close(&found.to_vec().unwrap(), &expected, 1e-5, &format!("{transposed}"));
        }
    }
}

#[test]
fn probabilities_sum_to_one() {
    let logits = Array::from_slice(&floats(2 * 50, 4.0), &[2, 50]).unwrap();
    let all = logits.argsort(-1).unwrap();
    for ops in means() {
        let logprobs = ops.logprobs(&logits, &all).unwrap().to_vec::<f32>().unwrap();
        for row in logprobs.chunks(50) {
            let total: f32 = row.iter().map(|logprob| logprob.exp()).sum();
            assert!((total - 1.0).abs() < 1e-5, "{total} {ops:?}");
        }
    }
}
