//! Operations against their formulas, by MLX's means and by our kernels.

use super::*;

/// Every way to compute.
fn means() -> [Ops; 2] {
    [Ops::new(None), Ops::new(Some(Kernels::new(2)))]
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
    let gate = Array::from_slice(&values, &[1, values.len()]).unwrap();
    let up = Array::full(&[1, values.len()], 2.0, DType::F32).unwrap();
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
        let expected: Vec<f64> = values.iter().map(|&x| 2.0 * formula(f64::from(x))).collect();
        for ops in means() {
            let found = ops.gated(activation, &gate, &up).unwrap().to_vec().unwrap();
            assert_close(&found, &expected, 2e-6, &format!("{activation} {ops:?}"));
        }
    }
}

#[test]
fn positions_turn_pairs_and_leave_the_rest() {
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

#[test]
fn queries_attend_to_what_they_see() {
    let (tokens, heads, kv_heads, dim, seen) = (3, 4, 2, 8, 7);
    let queries = floats(tokens * heads * dim, 2.0);
    let (keys, values) =
        (floats(kv_heads * seen * dim, 1.5), floats(kv_heads * seen * dim + 3, 1.0).split_off(3));
    let of = |values: &[f32]| Array::from_slice(values, &[1, kv_heads, seen, dim]).unwrap();
    let x = Array::from_slice(&queries, &[tokens, heads, dim]).unwrap();
    for order in [Order::All, Order::Causal, Order::Window(2)] {
        // A query that sees all is alone.
        let tokens = if order == Order::All { 1 } else { tokens };
        let x = x.slice_axis(0, 0, tokens).unwrap();
        let mut expected = Vec::new();
        for token in 0..tokens {
            let own = seen - tokens + token;
            let first = if let Order::Window(window) = order { own + 1 - window } else { 0 };
            for head in 0..heads {
                let query = &queries[(token * heads + head) * dim..][..dim];
                let row = |of: &[f32], position: usize, i: usize| {
                    f64::from(of[(head / (heads / kv_heads) * seen + position) * dim + i])
                };
                let score = |position: usize| -> f64 {
                    let products =
                        query.iter().enumerate().map(|(i, &q)| f64::from(q) * row(&keys, position, i));
                    (0.3 * products.sum::<f64>()).exp()
                };
                let total: f64 = (first..=own).map(score).sum();
                expected.extend((0..dim).map(|i| {
                    (first..=own).map(|position| score(position) * row(&values, position, i)).sum::<f64>()
                        / total
                }));
            }
        }
        let visible = Visible { keys: of(&keys), values: of(&values), order };
        for ops in means() {
            let found = ops.attention(&x, &visible, 0.3, &mut Masks::default()).unwrap();
            assert_eq!(found.shape(), [tokens, heads * dim]);
            assert_close(&found.to_vec().unwrap(), &expected, 1e-5, &format!("{order:?} {ops:?}"));
        }
    }
}

#[test]
fn the_probabilities_of_all_tokens_add_up_to_one() {
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
