//! Recurrences against their formulas, computed naively.

use mlxcel_graph::layers::{self, RecurrentRows};
use mlxcel_stablehlo::{Builder, Result, Value};

use crate::layers::support::{near, numbers, run, tensor};

const ROWS: [usize; 2] = [4, 1];
/// The first row has one token of padding.
const COUNTS: [i32; 2] = [3, 1];

fn assert_close(actual: &[f32], expected: &[f32]) {
    near(actual, expected, 1e-5);
}

/// The results for the rows' inputs, then their states. Each row's state of this shape has two layers, of which
/// the first is not touched.
fn recur<F>(inputs: &[(&[usize], &[f32])], shape: &[usize], stored: &[Vec<f32>; 2], body: F) -> Vec<Vec<f32>>
where
    F: for<'f> Fn(
        &mut Builder<'f>,
        &[Value<'f>],
        &RecurrentRows<'_, 'f>,
    ) -> Result<(Value<'f>, Vec<Value<'f>>)>,
{
    let mut arguments: Vec<_> = inputs.iter().map(|(shape, values)| tensor(shape, values)).collect();
    arguments.push(tensor(&[2], &COUNTS));
    arguments.extend(stored.iter().map(|state| tensor(&[&[2], shape].concat(), state)));
    let results = run(&arguments, |b, values| {
        let (inputs, others) = values.split_at(inputs.len());
        let rows = RecurrentRows { rows: &ROWS, counts: others[0], layer: 1, states: &others[1..] };
        let (y, states) = body(b, inputs, &rows)?;
        Ok([vec![y], states].concat())
    });
    let results: Vec<_> = results.iter().map(|tensor| tensor.as_slice::<f32>().unwrap().to_vec()).collect();
    for (state, stored) in results[1..].iter().zip(stored) {
        let first = stored.len() / 2;
        assert_close(&state[..first], &stored[..first]);
    }
    results
}

#[test]
fn a_convolution_continues_from_its_state_and_leaves_padding_out() {
    let (channels, taps) = (3, 4);
    let (x, weight, bias) = (numbers(5 * channels, 1), numbers(channels * taps, 2), numbers(channels, 3));
    let stored = [numbers(2 * channels * (taps - 1), 4), numbers(2 * channels * (taps - 1), 5)];
    let inputs: &[(&[usize], &[f32])] =
        &[(&[5, channels], &x), (&[channels, taps], &weight), (&[channels], &bias)];
    let results = recur(inputs, &[channels, taps - 1], &stored, |b, inputs, rows| {
        layers::causal_convolution(b, inputs[0], inputs[1], Some(inputs[2]), rows)
    });
    for (row, (start, tokens, count)) in [(0, 4, 3), (4, 1, 1)].into_iter().enumerate() {
        for c in 0..channels {
            let layer = channels * (taps - 1);
            let mut window = stored[row][layer + c * (taps - 1)..][..taps - 1].to_vec();
            window.extend((0..tokens).map(|t| x[(start + t) * channels + c]));
            for t in 0..count {
                let sum: f32 = (0..taps).map(|k| weight[c * taps + k] * window[t + k]).sum();
                assert_close(&[results[0][(start + t) * channels + c]], &[sum + bias[c]]);
            }
            let state = &results[1 + row][layer + c * (taps - 1)..][..taps - 1];
            assert_close(state, &window[count..count + taps - 1]);
        }
    }
}

#[test]
fn the_delta_rule_matches_its_formula() {
    let (key_heads, heads, k, v) = (2, 4, 3, 2);
    let (query, key) = (numbers(5 * key_heads * k, 1), numbers(5 * key_heads * k, 2));
    let (value, beta) = (numbers(5 * heads * v, 3), numbers(5 * heads, 4));
    let decay: Vec<f32> = numbers(5 * heads, 5).iter().map(|x| -x.abs()).collect();
    let size = heads * k * v;
    let stored = [numbers(2 * size, 6), numbers(2 * size, 7)];
    let inputs: &[(&[usize], &[f32])] = &[
        (&[5, key_heads, k], &query),
        (&[5, key_heads, k], &key),
        (&[5, heads, v], &value),
        (&[5, heads], &decay),
        (&[5, heads], &beta),
    ];
    let results = recur(inputs, &[heads, k, v], &stored, |b, inputs, rows| {
        layers::gated_delta_rule(b, [inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]], rows)
    });
    for (row, (start, count)) in [(0, 3), (4, 1)].into_iter().enumerate() {
        let mut state = stored[row][size..].to_vec();
        for token in start..start + count {
            for h in 0..heads {
                let s = &mut state[h * k * v..][..k * v];
                let key = &key[(token * key_heads + h / 2) * k..][..k];
                let query = &query[(token * key_heads + h / 2) * k..][..k];
                s.iter_mut().for_each(|x| *x *= decay[token * heads + h].exp());
                for j in 0..v {
                    let recalled: f32 = (0..k).map(|i| s[i * v + j] * key[i]).sum();
                    let error = (value[(token * heads + h) * v + j] - recalled) * beta[token * heads + h];
                    (0..k).for_each(|i| s[i * v + j] += key[i] * error);
                    let read: f32 = (0..k).map(|i| s[i * v + j] * query[i]).sum();
                    assert_close(&[results[0][(token * heads + h) * v + j]], &[read]);
                }
            }
        }
        assert_close(&results[1 + row][size..], &state);
    }
}

#[test]
fn the_generalised_delta_rule_matches_its_formula() {
    let (heads, k, v) = (2, 3, 4);
    let [query, key, removal, rewrite] = [1, 2, 3, 4].map(|seed| numbers(5 * heads * k, seed));
    let value = numbers(5 * heads * v, 5);
    let decay: Vec<f32> = numbers(5 * heads * k, 6).iter().map(|x| -x.abs()).collect();
    let size = heads * k * v;
    let stored = [numbers(2 * size, 7), numbers(2 * size, 8)];
    let keys = [5, heads, k];
    let inputs: &[(&[usize], &[f32])] = &[
        (&keys, &query),
        (&keys, &key),
        (&[5, heads, v], &value),
        (&keys, &decay),
        (&keys, &removal),
        (&keys, &rewrite),
    ];
    let results = recur(inputs, &[heads, k, v], &stored, |b, inputs, rows| {
        layers::generalized_delta_rule(b, inputs.try_into().unwrap(), rows)
    });
    for (row, (start, count)) in [(0, 3), (4, 1)].into_iter().enumerate() {
        let mut state = stored[row][size..].to_vec();
        for at in (start * heads)..(start + count) * heads {
            let s = &mut state[at % heads * k * v..][..k * v];
            for j in 0..v {
                let removed: f32 = (0..k).map(|i| s[i * v + j] * removal[at * k + i]).sum();
                for i in 0..k {
                    let added = rewrite[at * k + i] * removed + key[at * k + i] * value[at * v + j];
                    s[i * v + j] = decay[at * k + i].exp() * s[i * v + j] + added;
                }
                let read: f32 = (0..k).map(|i| s[i * v + j] * query[at * k + i]).sum();
                assert_close(&[results[0][at * v + j]], &[read]);
            }
        }
        assert_close(&results[1 + row][size..], &state);
    }
    // The fourth token is padding.
    assert_close(&results[0][3 * heads * v..4 * heads * v], &vec![0.0; heads * v]);
}

#[test]
fn previous_tokens_begin_with_the_state_and_leave_padding_out() {
    let channels = 3;
    let x = numbers(5 * channels, 1);
    let stored = [numbers(2 * channels, 2), numbers(2 * channels, 3)];
    let inputs: &[(&[usize], &[f32])] = &[(&[5, channels], &x)];
    let results =
        recur(inputs, &[channels, 1], &stored, |b, inputs, rows| layers::previous_tokens(b, inputs[0], rows));
    let expected = [&stored[0][channels..], &x[..3 * channels], &stored[1][channels..]].concat();
    assert_close(&results[0], &expected);
    for (row, last) in [2, 4].into_iter().enumerate() {
        assert_close(&results[1 + row][channels..], &x[last * channels..][..channels]);
    }
}

#[test]
fn the_state_space_scan_matches_its_formula() {
    let (heads, groups, p, n) = (4, 2, 3, 2);
    let (x, rate) = (numbers(5 * heads * p, 1), numbers(heads, 2));
    let dt: Vec<f32> = numbers(5 * heads, 3).iter().map(|x| x.abs()).collect();
    let (input, output) = (numbers(5 * groups * n, 4), numbers(5 * groups * n, 5));
    let size = heads * p * n;
    let stored = [numbers(2 * size, 6), numbers(2 * size, 7)];
    let inputs: &[(&[usize], &[f32])] = &[
        (&[5, heads, p], &x),
        (&[5, heads], &dt),
        (&[1, heads], &rate),
        (&[5, groups, n], &input),
        (&[5, groups, n], &output),
    ];
    let results = recur(inputs, &[heads, p, n], &stored, |b, inputs, rows| {
        layers::selective_state_space(b, [inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]], rows)
    });
    for (row, (start, count)) in [(0, 3), (4, 1)].into_iter().enumerate() {
        let mut state = stored[row][size..].to_vec();
        for token in start..start + count {
            for h in 0..heads {
                let dt = dt[token * heads + h];
                for i in 0..p {
                    let s = &mut state[(h * p + i) * n..][..n];
                    let x = x[(token * heads + h) * p + i];
                    let group = (token * groups + h / 2) * n;
                    for j in 0..n {
                        s[j] = s[j] * (dt * rate[h]).exp() + dt * x * input[group + j];
                    }
                    let read: f32 = (0..n).map(|j| s[j] * output[group + j]).sum();
                    assert_close(&[results[0][(token * heads + h) * p + i]], &[read]);
                }
            }
        }
        assert_close(&results[1 + row][size..], &state);
    }
}
